"""The page where Airflow has a path of its own behind a proxy, and two api-server processes."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_zkmq.embedded.server import free_ports
from airflow_provider_zkmq.engine import Message, Zkmq
from tests.support import eventually, fresh_root

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("heavy")]
LOGIN = {"admin": "secret"}
#: Headers of one connection, which a proxy does not pass on.
HOP: set[str] = {"connection", "keep-alive", "transfer-encoding", "host"}


class Proxy(http.server.ThreadingHTTPServer):
    """Passes on what comes, streams too, under another host's name, as docs/page.md asks of proxies."""

    daemon_threads = True

    def __init__(self, port: int, behind: int) -> None:
        self.behind = behind
        super().__init__(("127.0.0.1", port), Passing)


class Passing(http.server.BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        headers |= {"X-Forwarded-Host": self.headers["Host"], "X-Forwarded-Proto": "http"}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
        except OSError:  # it has not begun yet
            self.send_error(502)
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError, http.client.HTTPException):
            while chunk := answer.read1(65_536):
                self.wfile.write(chunk)
                self.wfile.flush()
        connection.close()

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def root() -> str:
    return fresh_root()


@pytest.fixture
def address(zookeeper: str, root: str, tmp_path: Path) -> Iterator[str]:
    """Where browsers find Airflow: its path at the proxy."""
    port, behind = free_ports("127.0.0.1", 2)
    connection = {"conn_type": "zkmq", "host": zookeeper, "port": 0, "extra": {"root": root}}
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(tmp_path / "passwords.json"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path / 'airflow.db'}",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(behind),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}/air",
        "AIRFLOW__API__WORKERS": "2",
        "AIRFLOW__API__SECRET_KEY": "s" * 64,
        "AIRFLOW__API_AUTH__JWT_SECRET": "s" * 64,
        "AIRFLOW_CONN_ZKMQ_DEFAULT": json.dumps(connection),
    }
    (tmp_path / "passwords.json").write_text(json.dumps(LOGIN))
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=environment, check=True, **quiet)
    command = [sys.executable, "-m", "airflow", "api-server"]
    with (
        Proxy(port, behind) as proxy,
        subprocess.Popen(command, env=environment, start_new_session=True, **quiet) as server,
    ):
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{port}/air"
        finally:
            proxy.shutdown()
            os.killpg(server.pid, 15)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, 9)


def test_the_page_works_below_a_path_behind_a_proxy_and_in_two_processes(
    address: str, zookeeper: str, root: str
) -> None:
    """Its files, views, events and actions; each process tells of what was done through the other one."""
    (login,) = ({"username": name, "password": password} for name, password in LOGIN.items())

    def token() -> str | None:
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
            return str(httpx.post(f"{address}/auth/token", json=login, timeout=60).json()["access_token"])
        return None

    eventually(lambda: token() is not None, within=300)
    with Zkmq.connect(zookeeper, root, gc=False, connect_timeout=30) as zk:
        queue = zk.queue("orders")
        queue.enqueue_many([Message(b"x")] * 3)
        origin = address.rpartition("/")[0]
        headers = {"Sec-Fetch-Site": "same-origin", "Origin": origin}
        with httpx.Client(cookies={"_token": token() or ""}, headers=headers, timeout=60) as browser:
            page = browser.get(f"{address}/zkmq/")
            assert page.status_code == 200
            assert 'src="static/app.js' in page.text
            assert browser.get(f"{address}/zkmq/static/app.js").status_code == 200
            base = f"{address}/zkmq/api/connections/zkmq_default"
            acted = browser.post(f"{base}/actions", json={"queue": "orders", "action": "pause"})
            assert acted.status_code == 200, acted.text
            del browser.headers["Sec-Fetch-Site"]  # as an older browser, which tells its origin alone
            assert browser.post(f"{base}/actions", json={"queue": "orders", "action": "resume"}).status_code == 200

            def row() -> dict[str, Any]:
                with httpx.Client(cookies={"_token": token() or ""}, timeout=60) as another:  # of either process
                    return dict(another.get(f"{base}/queues").json()["queues"][0])

            queue.enqueue(b"y")
            for _ in range(8):
                eventually(lambda: row()["counts"]["inserted"] == 4 and not row()["paused"])
            with browser.stream("GET", f"{base}/events") as events:
                assert "event: state" in (next(line for line in events.iter_lines() if line.startswith("event")))
    unknown = httpx.get(f"{address}/zkmq/", follow_redirects=False)
    assert unknown.status_code == 302
    assert unknown.headers["location"].startswith((f"{address}/auth/login", "/air/auth/login"))
