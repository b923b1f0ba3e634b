"""The page of queues as people meet it: a real Airflow, and Debian's chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Frame, FrameLocator, Locator, Page, expect, sync_playwright

from airflow_provider_zkmq.engine import Message, RetryPolicy, Task
from tests.e2e.conftest import LONG, Airflow, eventually

DAGS = ("page_orders",)
SETTINGS = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer"}
CHROMIUM = shutil.which("chromium")
#: Where the pictures of the documentation are written; None: they are not.
PICTURES = os.environ.get("ZKMQ_PICTURES")
#: Generous: the machine may be busy with other tests.
SOON = 60_000
pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("heavy"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not here: apt-get install chromium"),
]
expect.set_options(timeout=SOON)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """Somebody's browser, logged in by Airflow's own form."""

    def __init__(self, airflow: Airflow, browser: Browser, user: str, **looks: Any) -> None:
        self.url = airflow.api.url
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, **looks)
        self.context.set_default_timeout(SOON)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"a dialog: {dialog.message}"))
        passwords = json.loads((airflow.home / "airflow" / "passwords.json").read_text())
        self.page.goto(f"{self.url}/auth/login")
        self.page.fill("input[name=username]", user)
        self.page.fill("input[name=password]", passwords[user])
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(lambda url: "/login" not in url)

    def queues(self, query: str = "") -> FrameLocator:
        """The page in Airflow's frame."""
        self.page.goto(f"{self.url}/plugin/zkmq-queues{query and '/zkmq/?' + query}")
        return self.page.frame_locator("iframe")

    @property
    def frame(self) -> Frame:
        return next(frame for frame in self.page.frames if "/zkmq/" in frame.url and frame != self.page.main_frame)

    def alone(self, query: str = "") -> Page:
        """The page in a tab of its own."""
        self.page.goto(f"{self.url}/zkmq/?{query}")
        return self.page

    def picture(self, name: str) -> None:
        if PICTURES:
            self.page.wait_for_timeout(1_000)
            self.page.screenshot(path=Path(PICTURES) / f"{name}.png")

    def close(self) -> None:
        self.context.close()
        assert self.wrong == []


@pytest.fixture
def admin(airflow: Airflow, chromium: Browser) -> Iterator[Visit]:
    visit = Visit(airflow, chromium, "admin")
    yield visit
    visit.close()


def _row(page: FrameLocator, queue: str) -> Locator:
    """A queue's row; other tests may have made other connections to the same queues, whose rows come before it."""
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=queue, exact=True)).last


def fail(task: Task) -> bytes:
    """A handler that refuses what is bad, until it is told not to."""
    if task.data == b"bad":
        raise ValueError("no such street")
    return task.data


def test_from_a_red_sensor_to_the_task_that_failed_and_back_to_green(airflow: Airflow, admin: Visit) -> None:
    """The counts move while a worker runs; one click leads to the dead task; its group is redriven, and finishes."""
    queue = airflow.zk.queue("paper")
    queue.configure()
    page = admin.queues("search=paper")
    row = _row(page, "paper")
    expect(row).to_be_visible()
    airflow.run("page_orders")
    eventually(lambda: queue.counts()["inserted"] == 2, within=LONG)
    expect(row.get_by_text("2", exact=True).first).to_be_visible()
    queue.worker(fail).run(until_empty=True)
    expect(row.get_by_text("1 dead letter")).to_be_visible()
    assert airflow.ended("page_orders") == "failed"
    admin.picture("overview")

    admin.page.goto(f"{admin.url}/dags/page_orders/runs/r/tasks/wait/details")
    link = admin.page.get_by_role("link", name="Task", exact=True)
    expect(link).to_be_visible()
    target = link.get_attribute("href") or ""
    admin.page.goto(target)
    story = admin.page.frame_locator("iframe")
    expect(story.get_by_text("no such street").first).to_be_visible()
    expect(story.get_by_text("page_orders / r / hand_out")).to_be_visible()
    expect(story.get_by_text("page_orders / r / wait")).to_be_visible()
    admin.picture("story")

    page = admin.queues("connection=zkmq_default&queue=paper&view=dead")
    expect(page.get_by_text("ValueError: no such street").first).to_be_visible()
    admin.picture("dead-letters")
    page.get_by_role("button", name=re.compile("^Redrive")).last.click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Redrive")).click()
    eventually(lambda: queue.counts()["inserted"] == 1)
    queue.worker(lambda task: task.data).run(until_empty=True)
    page = admin.queues("connection=zkmq_default&queue=paper&view=tasks&state=finished")
    expect(page.get_by_role("row")).to_have_count(3)  # two tasks, and the head


def test_the_tasks_of_a_task_instance_are_shown_beside_it(airflow: Airflow, admin: Visit) -> None:
    """Those that the operator enqueued, with their states."""
    assert airflow.api.run_state("page_orders", "r") == "failed"
    query = "dag_id=page_orders&run_id=r&task_id=hand_out&map_index=-1"
    admin.page.goto(f"{admin.url}/dags/page_orders/runs/r/tasks/hand_out")
    admin.page.get_by_role("link", name="Queue tasks").click()
    expect(admin.page.frame_locator("iframe").get_by_text("enqueued").first).to_be_visible()
    page = admin.alone(query)
    ids = [task.id for task in airflow.zk.queue("paper").tasks()]
    for task in ids:
        expect(page.get_by_role("link", name=task)).to_be_visible()


def test_who_may_not_read_the_connection_is_told_what_to_do(airflow: Airflow, chromium: Browser) -> None:
    """A viewer sees no queue, no name of one, and no button."""
    visit = Visit(airflow, chromium, "viewer")
    page = visit.queues()
    expect(page.get_by_text(re.compile("connection", re.IGNORECASE)).first).to_be_visible()
    expect(page.get_by_text("paper")).to_have_count(0)
    visit.close()


NASTY = {
    "script": b"<script>alert(1)</script><img src=x onerror=alert(2)>",
    "large": b"<b>" + b"x" * 900_000,
    "binary": b"\xff\xfe\x00\x01<script>alert(3)</script>",
    "json": json.dumps({"a": [1, {"<img src=x onerror=alert(4)>": "'\""}]}).encode(),
}
VIEWS = {
    "overview": "",
    "queue": "connection=zkmq_default&queue=nasty",
    "tasks": "connection=zkmq_default&queue=nasty&view=tasks&state=inserted",
    "dead": "connection=zkmq_default&queue=nasty&view=dead",
    "task": "connection=zkmq_default&queue=nasty&task=script",
    "instance": "dag_id=page_orders&run_id=r&task_id=hand_out&map_index=-1",
    "no such queue": "connection=zkmq_default&queue=none",
    "an odd name": "connection=zkmq_default&queue=..%2f%27%22%3Cscript%3Ealert(5)%3C/script%3E",
    "no such task": "connection=zkmq_default&queue=nasty&task=none",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_an_axe_violation_or_runs_what_it_shows(
    airflow: Airflow, chromium: Browser, scheme: Any, subtests: pytest.Subtests
) -> None:
    """Serious or critical ones; payloads and names of markup are text; in light and dark, on a phone, too."""
    queue = airflow.zk.queue("nasty")
    if not queue.exists():
        queue.enqueue_many([Message(data, task_id=name) for name, data in NASTY.items()])
        queue.enqueue_many([Message(b"x", policy=RetryPolicy(attempts=1), priority=9) for _ in range(3)])
        for _ in range(3):
            claim = queue.claim()
            assert claim is not None
            claim.fail("<img src=x onerror=alert(6)>\nTraceback: " + "deep " * 500)
    visit = Visit(airflow, chromium, "admin", color_scheme=scheme)
    for name, query in VIEWS.items():
        with subtests.test(view=name):
            page = visit.alone(query)
            expect(page.get_by_role("main")).to_be_visible()
            expect(page.locator(".loading")).to_have_count(0)
            found = Axe().run(page).response["violations"]
            assert [each["id"] for each in found if each["impact"] in {"serious", "critical"}] == []
            visit.picture(f"{name.replace(' ', '-')}-{scheme}")
            page.set_viewport_size({"width": 390, "height": 800})
            page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")
            page.set_viewport_size({"width": 1280, "height": 800})
    for name in NASTY:
        page = visit.alone(f"connection=zkmq_default&queue=nasty&task={name}")
        expect(page.get_by_text(name).first).to_be_visible()
    visit.close()


def test_zookeeper_away_is_a_banner_and_then_life_goes_on(airflow: Airflow, admin: Visit) -> None:
    """Without a reload: what was there stays, and counts move again."""
    queue = airflow.zk.queue("away")
    queue.enqueue(b"x")
    page = admin.queues("search=away")
    row = _row(page, "away")
    expect(row).to_be_visible()
    banner = page.get_by_role("status").filter(has_text=re.compile("ZooKeeper|zkmq_default"))
    airflow.server.kill(0)
    try:
        expect(banner.first).to_be_visible()
        expect(row).to_be_visible()
    finally:
        airflow.server.restart(0)
    eventually(lambda: bool(queue.enqueue_many([Message(b"x")] * 41)), within=LONG)
    expect(row.get_by_text("42", exact=True)).to_be_visible()
