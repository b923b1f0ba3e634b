"""``airflow zkmq``: the command line with an Airflow connection."""

from __future__ import annotations

import argparse
import json
import re

import pytest

from airflow_provider_zkmq.commands.definition import get_zkmq_cli_commands
from airflow_provider_zkmq.commands.zkmq import _VARIABLES, run, run_words
from airflow_provider_zkmq.engine import Zkmq
from tests.airflow.conftest import define


@pytest.fixture(autouse=True)
def nobodys_environment(monkeypatch):
    """What the command says in its environment is of this test alone."""
    for name in _VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_help_and_what_connects_to_nothing_need_no_connection(tmp_path, monkeypatch, capsys):
    """The verbs are listed, and each explained, where there is no connection; after ``--`` a ``-h`` is a payload."""
    for words, told in (
        ([], "zkmq"),
        (["help"], "zkmq"),
        (["enqueue", "--help"], "usage: zkmq enqueue"),
        (["enqueue", "-h"], "usage: zkmq enqueue"),
        (["--version"], ""),
    ):
        assert run_words("no_such_conn", words) == 0
        assert told in capsys.readouterr().out
    assert [command.name for command in get_zkmq_cli_commands()] == ["zkmq"]
    define(monkeypatch, host=f"textqueue://{tmp_path}")
    assert run_words("zkmq_default", ["enqueue", "jobs", "--", "-h"]) == 0
    with Zkmq.connect(f"textqueue://{tmp_path}") as files:
        assert [task.data for task in files.queue("jobs").tasks()] == [b"-h"]


def test_verbs_work_on_the_connections_queues(queue, capsys):
    """Whatever the verb, options after it included; the exit code is that of ``zkmq``."""
    assert run_words("zkmq_default", ["enqueue", "jobs", "hello", "--task-id", "a", "--json"]) == 0
    capsys.readouterr()
    assert run_words("zkmq_default", ["show", "jobs", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == "hello"
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
    told = capsys.readouterr()
    assert "inserted" in told.out
    assert "marker-password" not in told.out + told.err


def test_a_connection_that_is_missing_or_wrong_is_one_line(monkeypatch, capsys, subtests, tmp_path):
    """Usage, exit code 2, whatever the hook refuses; 6, for what is out of reach, where a folder cannot be."""
    for fields, told in (
        (None, "zkmq_other"),
        ({"host": ""}, "no host"),
        ({"host": "zk", "password": "p"}, "login"),
        ({"host": "  "}, "hosts ''"),
        ({"host": "zk", "login": "ann:x", "password": "hidden"}, "the user without a colon"),
        ({"host": "zk", "extra": {"root": 5}}, "root must be text, not int"),
        ({"host": "zk", "extra": {"queue": 5}}, "queue must be text, not int"),
        ({"host": "zk", "extra": {"tls_ca": 5}}, "tls is not understood"),
        ({"host": "zk", "extra": {"tls": True, "tls_key_password": 12345}}, "key_password must be text"),
        ({"host": "zk", "extra": {"connect_timeout": 0}}, "connect_timeout"),
        ({"host": "textqueue:///", "login": "ann", "password": "hidden"}, "auth"),
        ({"host": "textqueue:///", "extra": {"tls": True}}, "tls"),
    ):
        with subtests.test(fields=fields):
            if fields is not None:
                define(monkeypatch, "zkmq_other", **fields)
            assert run_words("zkmq_other", ["queues"]) == 2
            err = capsys.readouterr().err
            (line,) = err.strip().splitlines()[-1:]
            assert re.match(f"airflow zkmq: .*{told}", line)
            assert not re.search("hidden|12345", err)
    (tmp_path / "file").write_text("")
    define(monkeypatch, host=f"textqueue://{tmp_path}/file/folder")
    assert run_words("zkmq_default", ["queues"]) == 6
    assert "Not a directory" in capsys.readouterr().err
