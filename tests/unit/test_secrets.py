"""Passwords are shown by nothing of ours: no representation, no error about what was given wrong."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import re
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import ConfigError, ConnectionConfig, Tls, Zkmq
from airflow_provider_zkmq.engine.zk.session import Session

SECRET = "s3cret"


@pytest.mark.parametrize(
    "options",
    [
        {"auth": SECRET},
        {"auth": ("ann", "b", SECRET)},
        {"auth": ("ann:x", SECRET)},
        {"auth": ("", SECRET)},
        {"auth": {"ann": SECRET}},
        {"auth": f"ann:{SECRET}\udcff"},
        {"auth": ("ann\ud800", SECRET)},
        {"auth": ("ann", SECRET * 100_000)},
        {"tls": {"key_password": SECRET.encode()}},
        {"tls": {"key_password": SECRET, "certificate": "x"}},
        {"tls": [SECRET]},
        {"tls": {"key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"}},
        {"tls": {"key": f"-----BEGIN PRIVATE KEY----- {SECRET}"}},
        {"tls": {"cert": f"{SECRET}\n"}},
        {"tls": {"ca": SECRET * 50}},
        {"tls": {"key": f"{SECRET}\0" * 1000}},
        {"password": SECRET},
        {"allow_open": SECRET},
        {"hosts": f"ann:{SECRET}@zk:2181"},
        {"hosts": f"zookeeper://ann:{SECRET}/with@more@zk1,zk2"},
        {"hosts": {"ann": SECRET}},
    ],
)
def test_an_error_about_a_connection_shows_no_password(options: dict[str, Any]) -> None:
    """What is wrong is told without the value, wherever somebody wrote the password."""
    with pytest.raises(ConfigError) as caught:
        ConnectionConfig.of(**options)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Its path is shown, and which of the three it is, so that it can be put right."""
    with pytest.raises(ConfigError, match=re.escape(f"tls key '{tmp_path}/key.pem' is not a readable file")):
        Tls(key=f"{tmp_path}/key.pem")


def test_no_representation_of_a_connection_shows_a_password() -> None:
    """Configuration, also as a mapping, session, client and queue can be logged; kazoo gets the plain text."""
    config = ConnectionConfig.of("127.0.0.1:1", auth=("ann", SECRET), tls={"key_password": SECRET})
    session = Session(config)
    client = Zkmq(config)
    limit = session.call_deadline().limit
    shown = [
        config,
        asdict(config),
        session,
        client,
        client.queue("q"),
        Tls(key_password=SECRET),
        session.unavailable(limit),
    ]
    assert not [repr(each) for each in shown if SECRET in f"{each!r} {each}"]
    assert session.client.auth_data == {("digest", f"ann:{SECRET}")}
    assert SECRET not in json.dumps(asdict(config))
    for again in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):  # noqa: S301  our own
        assert (again, again.auth) == (config, ("ann", SECRET))
    assert replace(config, auth=config.auth) == ConnectionConfig.of("127.0.0.1:1", auth=config.auth, tls=config.tls)


def test_no_level_of_the_log_lets_a_password_through(caplog: pytest.LogCaptureFixture) -> None:
    """kazoo writes at DEBUG what it sends; whoever switches that on for every logger there is gets none of it."""
    session = Session(ConnectionConfig.of("127.0.0.1:1", auth=("ann", SECRET)))
    with caplog.at_level(logging.DEBUG, "airflow_provider_zkmq.kazoo"):
        session.client.logger.debug("Sending request: %s", session.client.auth_data)
        session.client.logger.info("told")
    assert SECRET not in caplog.text
    assert "told" in caplog.text
