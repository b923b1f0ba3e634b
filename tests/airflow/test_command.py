"""``airflow zkmq``: the command line with an Airflow connection."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_zkmq.commands.definition import get_zkmq_cli_commands
from airflow_provider_zkmq.commands.zkmq import _VARIABLES, run, run_words
from airflow_provider_zkmq.engine import Zkmq
from tests.airflow.conftest import define

TOP = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nobodys_environment(monkeypatch):
    """What the command says in its environment is of this test alone."""
    for name in _VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def airflow(code, *words):
    """Run `airflow` with these words in a process of its own, and some code at its end."""
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: exec({code!r}))\n"
        f"sys.argv = {['airflow', *words]!r}\n"
        "from airflow.__main__ import main\n"
        "main()"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_airflow_knows_it_and_imports_nothing_for_it():
    """``airflow zkmq --help`` says how it is used; neither the engine nor kazoo is imported for that."""
    tell = "import sys; print('imported', [n for n in sys.modules if n == 'kazoo' or 'zkmq.engine' in n])"
    done = airflow(tell, "zkmq", "--help")
    assert done.returncode == 0, done.stderr
    assert "--conn-id" in done.stdout
    assert "imported []" in done.stdout


def test_what_airflow_reads_at_each_start_is_small():
    """To know of the command, nothing of ours is imported but where it is said, and nothing of the engine's."""
    code = (
        "import sys, airflow.cli.cli_config, airflow_provider_zkmq; before = set(sys.modules); "
        "from airflow_provider_zkmq.commands.definition import get_zkmq_cli_commands as get; get(); "
        "print(sorted(name for name in set(sys.modules) - before if 'zkmq' in name))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True, timeout=120
    )
    names = ["airflow_provider_zkmq.commands", "airflow_provider_zkmq.commands.definition"]
    assert done.stdout.splitlines()[-1] == str(names)


def test_what_only_looks_like_a_call_for_help_goes_where_the_connection_says(tmp_path, monkeypatch, capsys):
    """After ``--`` it is a payload; elsewhere help is told without any connection."""
    define(monkeypatch, host=f"textqueue://{tmp_path}")
    assert run_words("zkmq_default", ["enqueue", "jobs", "--", "-h"]) == 0
    with Zkmq.connect(f"textqueue://{tmp_path}") as files:
        assert [task.data for task in files.queue("jobs").tasks()] == [b"-h"]
    capsys.readouterr()
    assert run_words("nobody", ["enqueue", "-h"]) == 0
    assert "usage: zkmq enqueue" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("fields", "told"),
    [
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
    ],
)
def test_a_connection_that_is_missing_or_wrong_is_one_line(monkeypatch, capsys, fields, told):
    """Usage, exit code 2, as for any other mistake of the kind: nothing that the hook refuses is passed over."""
    if fields is not None:
        define(monkeypatch, "zkmq_other", **fields)
    assert run_words("zkmq_other", ["queues"]) == 2
    err = capsys.readouterr().err
    (line,) = err.strip().splitlines()[-1:]
    assert line.startswith("airflow zkmq: ")
    assert told in line
    assert "hidden" not in err
    assert "12345" not in err


def test_a_folder_that_cannot_be_is_told_as_by_zkmq(monkeypatch, capsys, tmp_path):
    """By its exit code for what is out of reach: the connection itself is understood."""
    (tmp_path / "file").write_text("")
    define(monkeypatch, host=f"textqueue://{tmp_path}/file/folder")
    assert run_words("zkmq_default", ["queues"]) == 6
    assert "Not a directory" in capsys.readouterr().err


def test_help_and_what_connects_to_nothing_need_no_connection(capsys):
    """The verbs are listed, and each explained, where there is no connection."""
    for words in ([], ["help"], ["enqueue", "--help"]):
        assert run_words("no_such_conn", words) == 0
        assert "zkmq" in capsys.readouterr().out
    assert run_words("no_such_conn", ["--version"]) == 0


def test_airflow_is_told_of_one_command():
    """Named as this provider's."""
    assert [command.name for command in get_zkmq_cli_commands()] == ["zkmq"]
