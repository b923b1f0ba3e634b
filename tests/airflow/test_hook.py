"""`ZkmqHook` and ``airflow zkmq``: from an Airflow connection to a queue."""

from __future__ import annotations

import argparse
import json
import logging
import re
import socket
import traceback
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_zkmq.commands.definition import get_zkmq_cli_commands
from airflow_provider_zkmq.commands.zkmq import _VARIABLES, run, run_words
from airflow_provider_zkmq.engine import AccessDenied, ConfigError, Unavailable, Zkmq
from airflow_provider_zkmq.hooks.arguments import flat_ids, items_of
from airflow_provider_zkmq.hooks.connection_options import OneAMinute, connection_options
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from tests.airflow.conftest import define


@pytest.fixture(autouse=True)
def nobodys_environment(monkeypatch):
    """What the command says in its environment is of this test alone."""
    for name in _VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def conn(**fields):
    return Connection(conn_id="c", conn_type="zkmq", **fields)


async def test_the_connection_s_queue(queue, monkeypatch):
    """Under its root, by either front; another by its name. A hook has kazoo tell of an outage once a minute."""
    logger = logging.getLogger("airflow_provider_zkmq.kazoo")
    logger.filters[:] = [each for each in logger.filters if not isinstance(each, OneAMinute)]
    with ZkmqHook() as hook:
        assert hook.get_conn() is hook.get_conn()
        blocking = hook.queue().enqueue("x")
        assert hook.queue("other").name == "other"
    assert sum(isinstance(each, OneAMinute) for each in logger.filters) == 1
    async with await hook.get_async_conn() as zk:
        awaited = await hook.async_queue(zk).enqueue("y")
    assert [queue.task(task).data for task in (blocking, awaited)] == [b"x", b"y"]
    monkeypatch.setattr(Zkmq, "open_above", ("/",))
    worked, said = hook.test_connection()
    assert (worked, "1 queue" in said, said.endswith("; open to anyone, above the root: /")) == (
        True,
        True,
        True,
    )
    assert hook._client is None, "the test's session is closed again"


def test_a_port_belongs_to_hosts_without_one(subtests):
    """A folder of queue files has none."""
    for host, port, hosts in (
        ("zk", None, "zk"),
        ("a:1,b:2", 0, "a:1,b:2"),
        ("zk", 2182, "zk:2182"),
        ("a:1, b", 2182, "a:1,b:2182"),
        ("[::1]", 2182, "[::1]:2182"),
        ("[::1]:5", 2182, "[::1]:5"),
        (" textqueue:///jobs/a, b", 2181, "textqueue:///jobs/a, b"),
    ):
        with subtests.test(host=host, port=port):
            assert connection_options(conn(host=host, port=port))["hosts"] == hosts


def test_extra_becomes_options():
    """Texts of numbers and flags, too; what names the authority switches TLS on."""
    extra = {
        "root": "/r", "queue": "q", "tls": "true", "tls_ca": "/ca", "allow_open": "yes",
        "session_timeout": "7", "connect_timeout": 8, "request_timeout": "PT1M", "tls_cert": None,
    }  # fmt: skip
    assert connection_options(conn(host="zk", login="u", password="p", extra=json.dumps(extra))) == {
        "hosts": "zk", "queue": "q", "root": "/r", "session_timeout": 7.0, "connect_timeout": 8, "request_timeout": 60,
        "auth": ["u", "p"], "tls": {"ca": "/ca"}, "allow_open": True,
    }  # fmt: skip
    assert connection_options(conn(host="zk", extra='{"tls": false, "tls_ca": "/ca"}'))["tls"] == {"ca": "/ca"}


def test_what_is_not_understood_is_one_error(monkeypatch, capsys, tmp_path, subtests):
    """It names the connection, and no secret or name that may be part of one; ``airflow zkmq`` tells it in a line."""
    for fields, said in (
        *(({} if host is None else {"host": host}, "connection 'c'.*no host") for host in (None, "")),
        ({"host": "zk", "password": "hidden"}, "connection 'c'.*login"),
        *(
            ({"host": "zk", "extra": extra}, f"connection 'c'.*{said}")
            for extra, said in (
                *(({name: "hidden"}, name) for name in ("tls", "allow_open", "connect_timeout")),
                ({"tls": {"key": "hidden"}}, "tls"),
                ({"session_timeout": ["hidden"]}, "session_timeout"),
                *(({"root": wrong}, "root must be text, not (list|int)") for wrong in (["hidden"], 5)),
                *(({"queue": wrong}, "queue must be text, not (dict|int)") for wrong in ({"name": "hidden"}, 5)),
                *(({name: "1"}, "whose name is not shown") for name in ("p4ss-hidden", "1hidden")),
                ({"rooot": "/r"}, "unknown extra rooot; known: "),
            )
        ),
        ({"host": "zk", "extra": {"tls_ca": 5}}, "tls is not understood"),
        ({"host": "  "}, "hosts ''"),
        ({"host": "zk", "login": "ann:x", "password": "hidden"}, "the user without a colon"),
        ({"host": "zk", "extra": {"tls": True, "tls_key_password": 12345}}, "key_password must be text"),
        ({"host": "zk", "extra": {"connect_timeout": 0}}, "connect_timeout"),
        ({"host": "textqueue:///", "login": "ann", "password": "hidden"}, "auth"),
        ({"host": "textqueue:///", "extra": {"tls": True}}, "tls"),
    ):
        with subtests.test(fields=fields):
            define(monkeypatch, "c", **fields)
            with pytest.raises(ConfigError, match=said) as caught:
                ZkmqHook("c").get_conn()
            assert run_words("c", ["queues"]) == 2
            err = capsys.readouterr().err
            assert re.match(f"airflow zkmq: .*{said}", err.strip().splitlines()[-1])
            assert not re.search("hidden|12345", err + "".join(traceback.format_exception(caught.value)))
    written = Connection(conn_id="c", uri="zkmq://zk:2181/?tls_key_password=ab&Hid.den=1&time_out=5")
    with pytest.raises(ConfigError, match="unknown extra time_out, whose name is not shown .* %26"):
        connection_options(written)
    for text in ('{"tls_key_password": "hidden",}', '"hidden"'):
        with pytest.raises(ConfigError, match="connection 'c'.* must be a JSON object") as caught:
            connection_options(conn(host="zk", extra=text))
        assert "hidden" not in "".join(traceback.format_exception(caught.value))
    (tmp_path / "file").write_text("")
    define(monkeypatch, host=f"textqueue://{tmp_path}/file/folder")
    assert run_words("zkmq_default", ["queues"]) == 6
    assert "Not a directory" in capsys.readouterr().err


async def test_an_extra_that_is_no_json_is_refused_on_an_event_loop(queue, monkeypatch):
    """Airflow takes it for an empty one, without TLS and root, and before 3.3.2 cannot mask one there: we do."""
    known = BaseHook.get_connection("zkmq_default")
    parts = {name: getattr(known, name) for name in ("conn_id", "host", "port", "login", "password", "extra")}
    given = [SimpleNamespace(**parts | {"extra": extra}) for extra in (known.extra, "{", "[]")]
    with monkeypatch.context() as patch:
        patch.setattr(BaseHook, "aget_connection", AsyncMock(side_effect=given))
        async with await ZkmqHook().get_async_conn() as zk:
            assert await zk.queues() == ["jobs"]
        for _ in range(2):
            with pytest.raises(ConfigError, match="extra must be a JSON object"):
                await ZkmqHook().get_async_conn()
    define(monkeypatch, host="zk", extra='{"tls": true, "root": "/hidden",}')
    with pytest.raises(ConfigError, match="extra must be a JSON object") as caught:
        await ZkmqHook().get_async_conn()
    assert "hidden" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigError, match="extra must be a JSON object"):
        ZkmqHook().get_conn()


def test_a_connection_that_is_missing_does_not_answer_or_refuses(zookeeper, root, monkeypatch, capsys):
    """One error with its id, or the hosts, or the user and not the password; the *Test* button tells the same."""
    with pytest.raises(AirflowNotFoundException, match="no_such_conn"):
        ZkmqHook("no_such_conn").get_conn()
    assert run_words("no_such_conn", ["queues"]) == 2
    assert re.match("airflow zkmq: .*no_such_conn", capsys.readouterr().err.strip().splitlines()[-1])
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{nobody.getsockname()[1]}"
        define(monkeypatch, host=hosts, extra={"connect_timeout": 0.3})
        with pytest.raises(Unavailable, match=hosts):
            ZkmqHook().get_conn()
        assert ZkmqHook().test_connection()[0] is False
    with Zkmq.connect(zookeeper, root, auth="ann:right", connect_timeout=20) as zk:
        zk.queue("jobs").enqueue("x")
    host, _, port = zookeeper.rpartition(":")
    for password, said in (("right", "1 queue"), ("wr0ng", "ann")):
        fields = {"login": "ann", "password": password, "extra": {"root": root, "connect_timeout": 20}}
        define(monkeypatch, host=f"{host},{zookeeper}", port=int(port), **fields)
        worked, text = ZkmqHook().test_connection()
        assert (worked, said in text, password in text) == (password == "right", True, False)
    with pytest.raises(AccessDenied, match="ann") as caught:
        ZkmqHook().queue("jobs").counts()
    assert "wr0ng" not in str(caught.value)


def test_lists_from_templates():
    """Ids and messages are understood as a list, nested as by mapped tasks, or as the text a template makes."""
    assert flat_ids("a") == ["a"]
    assert flat_ids([["a", "b"], "c", ("a",)]) == ["a", "b", "c"]
    assert flat_ids("['a', 'b']") == flat_ids('["a", "b"]') == ["a", "b"]
    assert flat_ids("") == []
    assert items_of("messages", "['x', {'data': 'y'}]") == ["x", {"data": "y"}]
    for wrong in ("[a", 5, [5], {"a": 1}):
        with pytest.raises(ConfigError):
            flat_ids(wrong)


def test_help_and_what_connects_to_nothing_need_no_connection(tmp_path, monkeypatch, capsys):
    """The verbs are listed, and each explained, where there is no connection; after ``--`` a ``-h`` is a payload."""
    for words, said in (
        ([], "zkmq"),
        (["help"], "zkmq"),
        (["enqueue", "--help"], "Usage: zkmq enqueue"),
        (["enqueue", "-h"], "Usage: zkmq enqueue"),
        (["--version"], ""),
    ):
        assert run_words("no_such_conn", words) == 0
        assert said in capsys.readouterr().out
    assert [command.name for command in get_zkmq_cli_commands()] == ["zkmq"]
    define(monkeypatch, host=f"textqueue://{tmp_path}")
    assert run_words("zkmq_default", ["enqueue", "--create", "jobs", "--", "-h"]) == 0
    with Zkmq.connect(f"textqueue://{tmp_path}") as files:
        assert [task.data for task in files.queue("jobs").tasks()] == [b"-h"]


def test_verbs_work_on_the_connections_queues(queue, capsys, monkeypatch):
    """Whatever the verb, options after it included; the exit code is that of ``zkmq``."""
    assert run_words("zkmq_default", ["enqueue", "jobs", "hello", "--task-id", "a", "--json"]) == 0
    capsys.readouterr()
    assert run_words("zkmq_default", ["show", "jobs", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == "hello"
    capsys.readouterr()
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/air")
    for words, where in (("show jobs a", "task=a"), ("dead list jobs", "view=dead"), ("status jobs", "")):
        assert run_words("zkmq_default", words.split()) == 0
        address = "https://airflow.example/air/plugin/zkmq-queues/air/zkmq/?connection=zkmq_default&queue=jobs"
        assert f"zkmq: see {address}{where and '&' + where}\n" in capsys.readouterr().err
    assert run_words("zkmq_default", ["show", "jobs", "b"]) == 1
    with pytest.raises(SystemExit) as left:
        run(argparse.Namespace(conn_id="zkmq_default", words=["queues"]))
    assert left.value.code == 0
    assert "jobs" in capsys.readouterr().out
    assert queue.task("a").data == b"hello"


def test_the_connection_comes_in_the_place_of_the_environment(zookeeper, root, monkeypatch, capsys):
    """Its credentials reach ZooKeeper and no command line; what the environment said before does not count."""
    with Zkmq.connect(zookeeper, root, auth="ann:marker-password", connect_timeout=20) as zk:
        zk.queue("secret").enqueue("x")
    monkeypatch.setenv("ZKMQ_HOSTS", "127.0.0.1:1")
    monkeypatch.setenv("ZKMQ_AUTH", "bob:other")
    extra = {"root": root, "connect_timeout": 20, "session_timeout": 9}
    define(monkeypatch, host=zookeeper, login="ann", password="marker-password", extra=extra)
    assert run_words("zkmq_default", ["status", "secret"]) == 0
    said = capsys.readouterr()
    assert "inserted" in said.out
    assert "marker-password" not in said.out + said.err
