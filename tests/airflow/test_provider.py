"""What Airflow reads about the provider."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import jsonschema

from airflow_provider_zkmq.hooks import connections
from airflow_provider_zkmq.provider_info import get_provider_info


def test_the_metadata_fits_airflows_schema():
    """Airflow's own schema accepts the provider info."""
    import airflow

    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_the_metadata_is_read_without_importing_airflow():
    """The provider scan pays for nothing: neither Airflow nor kazoo is imported."""
    code = (
        "import sys; from airflow_provider_zkmq.provider_info import get_provider_info; get_provider_info(); "
        "assert not {'airflow', 'kazoo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_class_and_module_named_exists():
    """Whatever the provider info names can be imported, and the hook says of itself what the info says of it."""
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    declared = info["connection-types"][0]
    module, _, name = declared["hook-class-name"].rpartition(".")
    hook = getattr(importlib.import_module(module), name)
    assert (hook.conn_type, hook.hook_name) == (declared["connection-type"], declared["hook-name"])


def test_the_form_has_exactly_the_fields_the_hook_reads():
    """No field of the form is ignored, and none that is read is missing from it."""
    assert set(get_provider_info()["connection-types"][0]["conn-fields"]) == set(connections._KNOWN)


def test_airflow_finds_the_connection_type():
    """The installed package is found by its entry point, with its form, without importing the hook."""
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    manager.initialize_providers_hooks()
    assert "airflow-provider-zkmq" in manager.providers
    assert manager.field_behaviours["zkmq"]["placeholders"]["port"] == "2181"
    assert "extra__zkmq__root" in manager.connection_form_widgets
