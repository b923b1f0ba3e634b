"""Airflow's own API in this process, over a database of its own; what its pages post, a test posts.

Run by tests as a program of its own, since it takes over Airflow's configuration and logging:
``python -m tests.airflow.api_server JSON``, where JSON lists connections as their form has them. It prints what the
*Test* button tells of each, as JSON in its last line: the HTTP status and the answer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any


def form_is_saved(api: Any, fields: dict[str, Any]) -> None:
    """Post what the page for a new connection posts: an empty field is left out."""
    answer = api.post("/api/v2/connections", json={"conn_type": "zkmq", **fields})
    assert answer.status_code == 201, answer.text


def button_is_pressed(api: Any, conn_id: str) -> tuple[int, Any]:
    """Post what the list's *Test* button posts of a connection that it shows: nothing is "", a port of nothing 0."""
    shown = api.get(f"/api/v2/connections/{conn_id}").json()
    names = ("description", "host", "login", "password", "schema")
    body = {name: shown[name] or "" for name in names}
    body |= {"connection_id": conn_id, "conn_type": shown["conn_type"]}
    body |= {"extra": shown["extra"] or "{}", "port": shown["port"] or 0}
    answer = api.post("/api/v2/connections/test", json=body)
    return answer.status_code, answer.json()


def main() -> None:
    """Save the connections, press the button for each, and print what came of it."""
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="zkmq-airflow-")
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__TEST_CONNECTION"] = "Enabled"
    os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] = "True"
    from airflow import settings
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from fastapi.testclient import TestClient

    import_all_models()
    Base.metadata.create_all(settings.engine)
    told = {}
    with TestClient(create_app(apps="core")) as api:
        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="a", role="ADMIN"))
        api.headers["Authorization"] = f"Bearer {token}"
        for fields in json.loads(sys.argv[1]):
            form_is_saved(api, fields)
            told[fields["connection_id"]] = button_is_pressed(api, fields["connection_id"])
        metadata = api.get("/ui/connections/hook_meta").json()
    form = [each for each in metadata if each["connection_type"] == "zkmq"]
    sys.stdout.write(json.dumps({"told": told, "form": form}) + "\n")


if __name__ == "__main__":
    main()
