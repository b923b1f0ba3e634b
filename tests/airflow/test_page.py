"""The page's server within Airflow's own api-server: who may do what, what it shows, and what it costs."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from airflow.api_fastapi.app import create_app, get_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.log import Log
from airflow.models.xcom import XComModel
from airflow.sdk.timezone import utcnow
from airflow.utils.session import create_session
from sqlalchemy import delete, select, text

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import Message, RetryPolicy, String, Zkmq
from airflow_provider_zkmq.engine.api.queue import Queue
from airflow_provider_zkmq.hooks.page_address import page_url
from airflow_provider_zkmq.hooks.task_instance import TaskLink
from airflow_provider_zkmq.plugins import access, actions, instances, live
from airflow_provider_zkmq.plugins.zkmq import QueuePage, ZkmqPlugin
from tests.airflow.conftest import define
from tests.support import eventually

BASE = "/zkmq/api/connections/zkmq_default"
#: Browsers send it with what a page of the same site asks for.
SAME = {"Sec-Fetch-Site": "same-origin"}


class Api:
    """Airflow's api-server with the page, and browsers of users with a role."""

    def __init__(self, url: str, page: QueuePage) -> None:
        self.url, self.page = url, page

    def browser(self, role: str | None) -> httpx.Client:
        """A browser in which somebody of a role is logged in; None: nobody."""
        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=f"the {role}", role=role))
        cookies = {} if role is None else {"_token": token}
        return httpx.Client(base_url=self.url, cookies=cookies, timeout=60, headers=SAME)


@pytest.fixture(scope="module")
def api(database: None) -> Iterator[Api]:
    """An api-server in a thread of this process."""
    page = QueuePage()
    purge_cached_app()
    app = create_app(apps="core")
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") not in {"/zkmq", ""}]
    app.mount("/zkmq", page)
    app.router.routes.insert(0, app.router.routes.pop())
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        eventually(lambda: server.started)
        yield Api(f"http://127.0.0.1:{listening.getsockname()[1]}", page)
        server.should_exit = True
        server.force_exit = True
        thread.join()
    purge_cached_app()


@pytest.fixture(autouse=True)
def no_memory(api: Api) -> Iterator[None]:
    """What a test's connection is like is forgotten after it."""
    yield
    lives = api.page.made().state.lives
    while lives:
        lives.popitem()[1].stop()


@pytest.fixture
def admin(api: Api) -> Iterator[httpx.Client]:
    with api.browser("admin") as browser:
        yield browser


def get(browser: httpx.Client, view: str, **query: Any) -> Any:
    """A view's JSON."""
    answer = browser.get(f"{BASE}/{view}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def act(browser: httpx.Client, action: str, **what: Any) -> list[dict[str, Any]]:
    """Have something done to the queue; the lines that tell of it."""
    answer = browser.post(f"{BASE}/actions", json={"queue": "jobs", "action": action, **what})
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def kill(queue: Queue, errors: dict[str, int]) -> None:
    """Make so many dead letters of each error."""
    for error, count in errors.items():
        queue.enqueue_many([Message(b"x", policy=RetryPolicy(attempts=1)) for _ in range(count)])
        for _ in range(count):
            claim = queue.claim()
            assert claim is not None
            claim.fail(error)


# --- Who may do what.


def test_every_route_asks_who_it_is(api: Api, queue: Queue) -> None:
    """Nobody who is not logged in gets anything, by whichever route of the app: a redirect to the login, or 401."""
    assert queue.enqueue(b"x")
    asked = set()
    with api.browser(None) as browser:
        for route in api.page.routes:
            path = route.path.replace("{connection_id}", "zkmq_default").replace("{name}", "app.js")
            for method in route.methods:
                answer = browser.request(method, f"/zkmq{path}", follow_redirects=False)
                assert answer.status_code in {302, 401}, (method, path, answer.text)
                asked.add(path)
    assert len(asked) >= 12
    assert "/login" in httpx.get(f"{api.url}/zkmq/", follow_redirects=False).headers["location"]


@pytest.mark.parametrize("view", ["queues", "queue?queue=jobs", "tasks?queue=jobs", "errors?queue=jobs", "events"])
def test_who_may_not_read_the_connection_sees_nothing_of_it(api: Api, queue: Queue, view: str) -> None:
    queue.enqueue(b"x")
    with api.browser("viewer") as browser:
        assert browser.get("/zkmq/api/connections").json()["connections"] == []
        answer = browser.get(f"{BASE}/{view}")
        assert answer.status_code == 403
        assert "jobs" not in answer.text


def test_who_may_not_act_does_nothing_and_is_in_no_audit_log(api: Api, admin: httpx.Client, queue: Queue) -> None:
    body = {"queue": "jobs", "action": "pause"}
    before = _logged()
    with api.browser("viewer") as browser:
        assert browser.post(f"{BASE}/actions", json=body).status_code == 403
    with api.browser(None) as browser:
        assert browser.post(f"{BASE}/actions", json=body).status_code == 401
    assert not queue.conf().paused
    assert _logged() == before
    assert act(admin, "pause")[-1]["message"] == "paused"
    eventually(lambda: queue.conf().paused)
    (entry,) = _logged()[len(before) :]
    assert entry[0] == "the admin"
    assert json.loads(entry[1])["queue"] == "jobs"
    assert act(admin, "resume")[-1]["message"] == "resumed"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 422),
        (b'{"queue": "jobs", "action": "explode"}', 422),
        (b'{"queue": "\\ud800", "action": "pause"}', 422),
        (b'{"queue": "none", "action": "pause"}', 404),
        (b'{"queue": "jobs", "action": "redrive"}', 400),
        (b'{"queue": "jobs", "action": "pause", "tasks": ["a"]}', 400),
    ],
    ids=["no JSON", "no action", "no text", "no queue", "no tasks", "tasks"],
)
def test_what_is_refused_is_in_no_audit_log(admin: httpx.Client, queue: Queue, body: bytes, code: int) -> None:
    """Nor is it sent back."""
    assert queue.enqueue(b"x")
    before = _logged()
    answer = admin.post(f"{BASE}/actions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == code
    assert "explode" not in answer.text
    assert _logged() == before


def test_the_audit_log_names_the_first_tasks_of_very_many(admin: httpx.Client, queue: Queue) -> None:
    assert queue.enqueue(b"x")
    act(admin, "cancel", tasks=[f"t{number}" for number in range(9_000)])
    noted = json.loads(_logged()[-1][1])
    assert (noted["connection_id"], noted["action"], noted["count"], len(noted["tasks"])) == (
        "zkmq_default", "cancel", 9_000, 50,
    )  # fmt: skip


def _logged() -> list[tuple[str, str]]:
    with create_session() as session:
        rows = session.execute(select(Log.owner, Log.extra).where(Log.event == "zkmq.action").order_by(Log.id))
        return [(owner, extra) for owner, extra in rows]


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "null"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "http://[bad", "X-Forwarded-Host": "["},
        {"Content-Type": "text/plain"},
        {"Content-Type": "text/plain; x=application/json"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
    ids=str,
)
def test_another_site_has_nothing_done(admin: httpx.Client, queue: Queue, headers: dict[str, str]) -> None:
    """Although the browser sends its user's cookie with it."""
    body = json.dumps({"queue": "jobs", "action": "pause"})
    if "Origin" in headers:  # an older browser, which does not say more
        del admin.headers["Sec-Fetch-Site"]
    answer = admin.post(f"{BASE}/actions", content=body, headers={"Content-Type": "application/json", **headers})
    assert answer.status_code == 403
    assert not queue.conf().paused


def test_only_connections_of_queues_are_shown(
    admin: httpx.Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "postgres", "host": "secret-host"}))
    define(monkeypatch, "zkmq_broken")
    named = [each["id"] for each in admin.get("/zkmq/api/connections").json()["connections"]]
    assert named == ["zkmq_broken", "zkmq_default"]
    for wrong in ("shop", "none", "..", "zkmq_default%2f..", "ZKMQ_DEFAULT", "Zkmq_Default"):
        answer = admin.get(f"/zkmq/api/connections/{wrong}/queues")
        assert answer.status_code == 404
        assert "secret-host" not in answer.text
    assert admin.get("/zkmq/api/connections/zkmq_broken/queue?queue=x").status_code == 400
    assert queue.name == "jobs"


# --- What it shows.


def test_the_overview_tells_of_each_queue_trouble_first(admin: httpx.Client, queue: Queue) -> None:
    kill(queue, {"no paper": 2})
    queue.enqueue(b"x")
    (row,) = get(admin, "queues")["queues"]
    assert row["queue"] == "jobs"
    assert row["counts"] == {"inserted": 1, "scheduled": 0, "claimed": 0, "finished": 0, "dead": 2, "cancelled": 0}
    assert row["troubles"][0]["kind"] == "dead"
    assert row["error"] is None


def test_each_page_of_tasks_goes_on_behind_the_one_before(admin: httpx.Client, queue: Queue) -> None:
    """Every task comes once, whichever state they are in, and however many there are."""
    queue.configure(filters={"region": String()})
    pending = [queue.enqueue(b"x", filters={"region": f"r{number % 3}"}) for number in range(120)]
    late = [queue.enqueue(b"x", delay=60 + number) for number in range(60)]
    assert _all(admin, "inserted") == (sorted(pending), 3)
    assert _all(admin, "scheduled") == (sorted(late), 2)
    kill(queue, {})
    for _ in range(60):
        claim = queue.claim()
        assert claim is not None
        claim.complete()
    finished, pages = _all(admin, "finished")
    assert (len(set(finished)), pages) == (60, 2)


def _all(browser: httpx.Client, state: str, **query: str) -> tuple[list[str], int]:
    """The ids of the tasks on all pages, sorted, and how many pages."""
    found, cursor, pages = list[str](), "", 0
    while True:
        page = get(browser, "tasks", queue="jobs", state=state, cursor=cursor, **query)
        found += [task["id"] for task in page["tasks"]]
        pages += 1
        assert len(page["tasks"]) <= 50
        if page["cursor"] is None:
            return sorted(found), pages
        cursor = page["cursor"]


def test_tasks_are_found_by_what_they_have_in_common(admin: httpx.Client, queue: Queue) -> None:
    queue.configure(filters={"region": String()})
    mine = queue.enqueue(b"x", task_id="invoice-7", filters={"region": "eu"})
    queue.enqueue_many([Message(b"x", {"region": "us"}) for _ in range(70)])
    members = queue.enqueue_many([Message(b"x"), Message(b"x")], batch="night")
    kill(queue, {})
    assert _all(admin, "inserted", selector="region==eu")[0] == [mine]
    assert _all(admin, "inserted", id="voice")[0] == [mine]
    assert _all(admin, "inserted", batch="night")[0] == sorted(members)
    assert _all(admin, "inserted", older="1h")[0] == []
    assert len(_all(admin, "inserted", older="0s")[0]) == 73
    for wrong in ({"state": "lost"}, {"selector": "region=="}, {"older": "long"}, {"selector": "colour==red"}):
        answer = admin.get(f"{BASE}/tasks", params={"queue": "jobs", **wrong})
        assert answer.status_code == 400, wrong
        assert answer.json()["detail"]


def test_dead_letters_are_grouped_by_their_errors(admin: httpx.Client, queue: Queue) -> None:
    kill(queue, {"timed out": 3, "no such street": 1})
    told = get(admin, "errors", queue="jobs")
    assert [(group["error"], group["count"]) for group in told["groups"]] == [("timed out", 3), ("no such street", 1)]
    assert told["total"] == 4
    assert len(_all(admin, "dead", error="timed*")[0]) == 3


def test_a_group_is_redriven_and_shown_alone(admin: httpx.Client, queue: Queue) -> None:
    """Also where its error is part of another, or would be a pattern."""
    kill(queue, {"bad": 3, "bad street": 2, "***": 2})
    for error, count in (("bad", 3), ("***", 2)):
        assert len(_all(admin, "dead", kind=error)[0]) == count
        selection = {"state": "dead", "kind": error, "all": True}
        assert act(admin, "redrive", selection=selection)[-1]["done"] == count
    assert [group["error"] for group in get(admin, "errors", queue="jobs")["groups"]] == ["bad street"]


def test_each_line_of_an_action_tells_how_many_more_are_done(admin: httpx.Client, queue: Queue) -> None:
    kill(queue, {"no paper": 150})
    of, *lines, end = act(admin, "redrive", selection={"state": "dead", "all": True})
    assert of == {"of": 150}
    assert [line["done"] for line in lines] == [64, 64, 22]
    assert end["done"] == 150


def test_a_story_tells_of_each_delivery_and_of_who_enqueued_it(admin: httpx.Client, queue: Queue) -> None:
    origin = {"dag_id": "d/x", "run_id": "manual__2026-11-29T10:00:00+00:00", "task_id": "t", "map_index": 2}
    task = queue.enqueue(b'{"a": 1}', metadata={"airflow": origin}, policy=RetryPolicy(attempts=2, min_backoff=0))
    claim = queue.claim()
    assert claim is not None
    claim.fail("no paper")
    story = get(admin, "task", queue="jobs", task=task)
    assert story["task"]["data"] == {"bytes": 8, "kind": "json", "text": '{"a": 1}', "truncated": False}
    assert [each["error"] for each in story["task"]["history"]] == ["no paper"]
    (link,) = story["links"]
    assert link["href"] == "dags/d%2Fx/runs/manual__2026-11-29T10%3A00%3A00%2B00%3A00/tasks/t/mapped/2"
    assert admin.get(f"{BASE}/task", params={"queue": "jobs", "task": "none"}).status_code == 404


def _leave_link(queue: str, how: str, task: str, **more: Any) -> None:
    """Have an instance ``claiming`` of the DAG `how` leave the link that its operator leaves at its end."""
    url = page_url("https://airflow.example", "zkmq_default", queue, how=how, of=task)
    row = {"dag_run_id": 1, "dag_id": how, "run_id": "r", "task_id": "claiming", "map_index": -1} | more
    row["dag_run_id"], key = abs(hash(row["dag_id"])) % 1_000_000, TaskLink().xcom_key
    with create_session() as session:
        session.execute(text("PRAGMA foreign_keys=OFF"))  # there is no such run
        session.execute(delete(XComModel).where(XComModel.dag_id == row["dag_id"]))
        session.add(XComModel(**row, key=key, value=XComModel.serialize_value(url), timestamp=utcnow()))


def test_a_story_names_the_runs_that_dealt_with_the_task(
    admin: httpx.Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the links that operators left; neither those to other tasks and queues, nor runs of a DAG not to be seen."""
    task = queue.enqueue(b"x", task_id="a_b")
    _leave_link("jobs", "claimed", f"x,{task}")
    _leave_link("jobs", "settled", task, map_index=3)
    _leave_link("others", "waited for", task)
    _leave_link("jobs", "enqueued", "axb,a_b1")
    story = get(admin, "task", queue="jobs", task=task)
    assert [(link["label"], link["text"]) for link in reversed(story["links"])] == [
        ("Claimed in Airflow by", "claimed / r / claiming"),
        ("Settled in Airflow by", "settled / r / claiming"),
    ]
    assert story["links"][0]["href"] == "dags/settled/runs/r/tasks/claiming/mapped/3"
    for number in range(10, 40):  # newer, and of another task whose id begins alike
        _leave_link("jobs", "waited for", f"a_b{number}", dag_id=f"d{number}")
    monkeypatch.setattr(instances, "_LOOKED_AT", 3)
    monkeypatch.setattr(instances, "BELIEVED_SECONDS", 0.0)
    monkeypatch.setattr(access, "may_read_instances", lambda _, dag_id: dag_id == "claimed")
    (link,) = get(admin, "task", queue="jobs", task=task)["links"]
    assert link["text"] == "claimed / r / claiming"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"<script>alert(1)</script>", "text"),
        (b"\xff\xfe\x00<script>", "binary"),
        (b"nul\0", "binary"),
        ("é".encode() * 450_000, "text"),
        (b"a" + "é".encode() * 450_000, "text"),
        (b"[" * 5_000, "text"),
        (b"", "text"),
    ],
    ids=["script", "no text", "nul", "large", "cut in a character", "nested", "empty"],
)
def test_any_payload_is_shown_harmlessly(admin: httpx.Client, queue: Queue, data: bytes, kind: str) -> None:
    """At most 64 kB of it as text, and as a whole only as a file of no type."""
    task = queue.enqueue(data)
    shown = get(admin, "task", queue="jobs", task=task)["task"]["data"]
    assert (shown["kind"], shown["bytes"], shown["truncated"]) == (kind, len(data), len(data) > 65_536)
    assert len(shown["text"].encode()) <= 65_536
    whole = admin.get(f"{BASE}/payload", params={"queue": "jobs", "task": task, "part": "data"})
    assert whole.content == data
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith("attachment")
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in whole.headers["content-security-policy"]


@pytest.mark.parametrize("name", ["../conf", "%2f", "a/b", "'\"", "a\0b", "x" * 129, "é", "<b>"])
def test_odd_names_are_refused_and_nothing_more(admin: httpx.Client, queue: Queue, name: str) -> None:
    assert queue.name
    for view in ("queue", "tasks", "errors", "days"):
        assert admin.get(f"{BASE}/{view}", params={"queue": name}).status_code in {400, 422}
    assert admin.get(f"{BASE}/task", params={"queue": "jobs", "task": name}).status_code in {400, 422}


def test_no_pattern_takes_its_time_over_an_error(admin: httpx.Client, queue: Queue) -> None:
    """Parts with anything between them are looked for one behind the other, however many there are."""
    kill(queue, {"e" * 3_900: 3})
    assert _all(admin, "dead", error="*".join("e" * 2_000) + "*x")[0] == []
    assert len(_all(admin, "dead", error="*".join("e" * 2_000))[0]) == 3


def test_there_are_days_where_the_queue_itself_is_archived(
    admin: httpx.Client, queue: Queue, zookeeper: str, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not where another archive, which the environment names, has a queue of its name."""
    from airflow_provider_zkmq.spark import run_pipeline

    monkeypatch.setenv("ZKMQ_ARCHIVE_DIR", str(tmp_path))
    assert get(admin, "days", queue="jobs")["days"] is None
    queue.configure(archive=True)
    for _ in range(3):
        queue.enqueue(b"x")
        claim = queue.claim()
        assert claim is not None
        claim.complete()
    run_pipeline(lambda: Zkmq.connect(zookeeper, root, gc=False), ["jobs"], tmp_path)
    eventually(lambda: get(admin, "days", queue="jobs")["days"] is not None)
    (day,) = get(admin, "days", queue="jobs")["days"]
    assert (day["finished"], day["dead"]) == (3, 0)
    assert day["wait_p95"] >= day["wait_mean"] >= 0


@pytest.mark.parametrize("index", ["-1", "3", "{MAP_INDEX}", "9" * 20, "x"])
def test_a_task_instance_that_dealt_with_nothing_shows_nothing(admin: httpx.Client, queue: Queue, index: str) -> None:
    """Whatever stands for its map index: Airflow leaves a placeholder where it has none."""
    instance = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": index}
    answer = admin.get("/zkmq/api/instance", params=instance)
    assert (answer.status_code, answer.json()) == (200, {"tasks": [], "hidden": 0})
    assert queue.name == "jobs"


# --- What is done.


def test_redrive_cancel_and_release_tell_what_was_done_and_what_refused(admin: httpx.Client, queue: Queue) -> None:
    kill(queue, {"timed out": 70, "no paper": 2})
    first, *rest = act(admin, "redrive", selection={"error": "timed out", "state": "dead"})
    assert first == {"of": 70}
    assert rest[-1] | {"message": ""} == {"over": True, "done": 70, "refused": 0, "message": ""}
    assert queue.counts()["dead"] == 2
    [lost] = act(admin, "redrive", tasks=["none"])[1]["refused"]
    assert lost["id"] == "none"
    assert "never enqueued" in lost["reason"]
    claim = queue.claim(lease=60)
    assert claim is not None
    assert act(admin, "release", tasks=[claim.task.id])[-1]["done"] == 1
    assert act(admin, "cancel", selection={"all": True})[-1]["done"] == 70
    assert queue.counts() | {"finished": 0} == {
        "inserted": 0, "scheduled": 0, "claimed": 0, "finished": 0, "dead": 2, "cancelled": 70,
    }  # fmt: skip
    assert act(admin, "clean")[-1]["over"]


def test_an_action_that_takes_long_is_not_silent(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy ends a request that says nothing for long; the last line tells what was done."""
    done = threading.Event()
    monkeypatch.setattr(actions, "_SILENT_SECONDS", 0.01)
    monkeypatch.setattr(actions, "_of_queue", lambda *_: "2 deleted" if done.wait(60) else "never")
    lines = map(json.loads, actions.carry_out(queue, actions.Action(queue="jobs", action="clean")))
    assert next(lines) == {"done": 0, "refused": []}
    gone = actions.carry_out(queue, actions.Action(queue="jobs", action="clean"))
    next(gone)
    gone.close()  # whose browser has left: this returns although the work goes on
    done.set()
    assert list(lines)[-1] == {"over": True, "done": 1, "refused": 0, "message": "2 deleted"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queue": "jobs", "action": "drop everything"},
        {"queue": "jobs", "action": "redrive"},
        {"queue": "jobs", "action": "redrive", "tasks": []},
        {"queue": "jobs", "action": "redrive", "selection": {}},
        {"queue": "jobs", "action": "redrive", "tasks": ["a"], "selection": {"all": True}},
        {"queue": "jobs", "action": "redrive", "selection": {"every": True}},
        {"queue": "..", "action": "pause"},
        {"queue": "jobs", "action": "cancel", "tasks": ["../conf"]},
        {"queue": "none", "action": "pause"},
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused_before_anything_is_done(
    admin: httpx.Client, queue: Queue, body: dict[str, Any]
) -> None:
    kill(queue, {"e": 1})
    answer = admin.post(f"{BASE}/actions", json=body)
    assert answer.status_code in {400, 404, 422}
    assert queue.counts()["dead"] == 1


# --- Live: events, and what they cost.


class Stream:
    """A browser that reads the events of a connection, in a thread."""

    def __init__(self, browser: httpx.Client) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.state: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._read, args=(browser,), daemon=True)
        self._over = False
        self._thread.start()

    def _read(self, browser: httpx.Client) -> None:
        with contextlib.suppress(httpx.HTTPError), browser.stream("GET", f"{BASE}/events") as answer:
            kind = ""
            for line in answer.iter_lines():
                if self._over:
                    return
                kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
                if line.startswith("data: "):
                    self._take(kind, json.loads(line.removeprefix("data: ")))

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "state":
            self.state = data
            return
        self.rows = {} if data["whole"] else self.rows
        self.rows |= {row["queue"]: row for row in data["queues"]}
        for name in data["gone"]:
            self.rows.pop(name, None)

    def pending(self) -> int:
        return int(self.rows.get("jobs", {"counts": {"inserted": -1}})["counts"]["inserted"])

    def close(self) -> None:
        self._over = True


def test_whoever_looks_is_told_of_each_change(admin: httpx.Client, queue: Queue, zookeeper: str, root: str) -> None:
    stream = Stream(admin)
    eventually(lambda: stream.pending() == 0)
    queue.enqueue_many([Message(b"x")] * 3)
    eventually(lambda: stream.pending() == 3)
    with Zkmq.connect(zookeeper, root, gc=False) as zk:
        zk.queue("other").enqueue(b"x")
        eventually(lambda: "other" in stream.rows)
        zk.delete_queue("other", confirm=True)
        eventually(lambda: "other" not in stream.rows)
    stream.close()


def test_a_hundred_pages_cost_the_requests_of_one(api: Api, queue: Queue) -> None:
    """ZooKeeper is asked as often as for one, while everybody is told of each change; and so for what they ask."""

    def spent(watching: int) -> int:
        browsers = [api.browser("admin") for _ in range(watching)]
        streams = [Stream(browser) for browser in browsers]
        eventually(lambda: all(stream.rows for stream in streams), within=60)
        client = api.page.made().state.lives["zkmq_default"].client()
        before = sum(client.requests.values())
        begun = queue.counts()["inserted"]
        for count in range(1, 6):
            queue.enqueue(b"x")
            eventually(lambda: all(stream.pending() == begun + count for stream in streams), within=60)  # noqa: B023
        for stream, browser in zip(streams, browsers, strict=True):
            stream.close()
            browser.close()
        return sum(client.requests.values()) - before

    one = spent(1)
    assert spent(40) <= 4 * one  # the looks are by time, and a busy machine takes longer


def test_while_nothing_changes_a_look_is_one_request(api: Api, admin: httpx.Client, queue: Queue) -> None:
    queue.enqueue(b"x")
    seen = live.Live("zkmq_default")
    try:
        assert seen.snapshot()["queues"][0]["queue"] == "jobs"
        client = seen.client()
        eventually(lambda: dict(client.requests) == _after_a_look(client))
    finally:
        seen.stop()
    assert admin.get("/zkmq/api/connections").status_code == 200
    assert api.url


def _after_a_look(client: Any) -> dict[str, int]:
    """What a client has sent, less one look at whether anything has changed; waits for one."""
    before = dict(client.requests)
    eventually(lambda: dict(client.requests) != before)
    return {**client.requests, "Exists": client.requests["Exists"] - 1}


def test_zookeeper_away_is_told_and_life_goes_on_when_it_is_back(
    admin: httpx.Client, mortal: EmbeddedServer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(monkeypatch, host=mortal.hosts, extra={"root": root})
    with Zkmq.connect(mortal.hosts, root, gc=False, connect_timeout=30) as zk:
        queue = zk.queue("jobs")
        queue.enqueue(b"x")
        stream = Stream(admin)
        eventually(lambda: stream.pending() == 1 and stream.state["connected"])
        mortal.kill(0)
        eventually(lambda: not stream.state["connected"], within=60)
        assert stream.state["error"]
        assert stream.pending() == 1
        assert admin.get(f"{BASE}/task", params={"queue": "jobs", "task": "x"}).status_code == 503
        mortal.restart(0)
        eventually(lambda: stream.state["connected"], within=60)
        eventually(lambda: bool(queue.enqueue(b"y")), within=60)
        eventually(lambda: stream.pending() >= 2, within=60)
    stream.close()


def test_a_queue_that_moves_is_shown_while_all_queues_rest(
    admin: httpx.Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many queues reading takes a while, after which it rests for some time."""
    stream = Stream(admin)
    eventually(lambda: "jobs" in stream.rows)
    queue.enqueue(b"x")
    eventually(lambda: stream.rows["jobs"]["counts"]["inserted"] == 1)
    monkeypatch.setattr(live, "SHARE", 1_000_000)
    for count in (2, 3, 4):
        queue.enqueue(b"x")
        eventually(lambda count=count: stream.rows["jobs"]["counts"]["inserted"] == count)
    stream.close()


def test_settings_that_change_are_heeded(
    admin: httpx.Client, queue: Queue, zookeeper: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a new start of the api-server."""
    monkeypatch.setattr(live, "SETTINGS_SECONDS", 0.1)
    stream = Stream(admin)
    eventually(lambda: "jobs" in stream.rows)
    with Zkmq.connect(zookeeper, f"{root}-2", gc=False) as zk:
        zk.queue("there").enqueue(b"x")
        define(monkeypatch, host=zookeeper, extra={"root": f"{root}-2"})
        eventually(lambda: set(stream.rows) == {"there"})
    stream.close()
    assert queue.name == "jobs"


# --- What it costs others.


def test_other_processes_of_airflow_import_nothing_of_the_app() -> None:
    """The plugin is loaded by a scheduler, a triggerer, a task: neither FastAPI nor an engine comes with it."""
    script = (
        "import sys; from airflow_provider_zkmq.plugins.zkmq import ZkmqPlugin as P; assert P.fastapi_apps; "
        "assert P.external_views; print([n for n in sys.modules if n.startswith('fastapi') or n == 'kazoo' "
        "or n.startswith('airflow_provider_zkmq.plugins.') or n.startswith('airflow_provider_zkmq.engine.core')])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "['airflow_provider_zkmq.plugins.zkmq']"
    assert ZkmqPlugin.name == "zkmq"


def test_nobody_looking_ends_the_session_and_whoever_comes_later_has_another(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LINGER_SECONDS", 2.0)  # longer than it takes to connect on a busy machine
    monkeypatch.setattr(live, "WATCHED_SECONDS", 60.0)
    seen = live.Live("zkmq_default")
    client = seen.client()
    eventually(lambda: client.closed, within=60)
    assert [row["queue"] for row in seen.snapshot()["queues"]] == [queue.name]
    assert seen.client() is not client
    seen.stop()


def test_the_built_page_is_there() -> None:
    folder = Path(live.__file__).parent / "static"
    assert {"index.html", "app.js", "app.css"} <= {path.name for path in folder.iterdir()}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 300_000
