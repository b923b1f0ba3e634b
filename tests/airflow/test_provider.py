"""What Airflow reads about the provider."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

from airflow_provider_zkmq.engine import ConfigError, ConnectionConfig, Zkmq
from airflow_provider_zkmq.hooks import connections, settings
from airflow_provider_zkmq.provider_info import get_provider_info
from airflow_provider_zkmq.triggers.events import ZkmqEventTrigger

TOP = Path(__file__).parents[2]


def test_the_metadata_fits_airflows_schema():
    """Airflow's own schema accepts the provider info."""
    import airflow

    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_every_class_and_module_named_exists():
    """Whatever the provider info names can be imported, and the hook says of itself what the info says of it."""
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    decorators = [entry["class-name"] for entry in info.get("task-decorators", ())]
    for path in (*info["notifications"], *info["cli"], *decorators):
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name)), path
    declared = info["connection-types"][0]
    module, _, name = declared["hook-class-name"].rpartition(".")
    hook = getattr(importlib.import_module(module), name)
    assert (hook.conn_type, hook.hook_name) == (declared["connection-type"], declared["hook-name"])


def test_the_configuration_has_exactly_the_options_that_are_read():
    """With the same defaults; each has a type and says what it is for."""
    options = get_provider_info()["config"]["zkmq"]["options"]
    assert {name: option["default"] for name, option in options.items()} == settings.DEFAULTS
    assert all(option["description"].endswith(".") for option in options.values())


def test_the_form_has_exactly_the_fields_the_hook_reads():
    """No field of the form is ignored, and none that is read is missing from it."""
    assert set(get_provider_info()["connection-types"][0]["conn-fields"]) == set(connections._KNOWN)


@pytest.mark.parametrize("host", ["zk:2181", "textqueue://"])
def test_a_connection_saved_by_the_untouched_form_can_be_used(host, tmp_path):
    """Of servers and of queue files: the form's defaults, which Airflow saves as if they had been said, fit both."""
    form = get_provider_info()["connection-types"][0]["conn-fields"]
    extra = json.dumps({name: field["schema"].get("default") for name, field in form.items()})
    made = connections.connection_options(Connection(conn_id="c", conn_type="zkmq", host=host, extra=extra))
    given = {name: value for name, value in made.items() if name not in ("hosts", "queue")}
    if host.startswith("zk"):
        assert ConnectionConfig.of(host, **given) == ConnectionConfig.of(host)
    else:
        with Zkmq.connect(f"{host}{tmp_path}", **given) as files:
            assert files.queues() == []


@pytest.mark.full
def test_a_form_that_is_filled_as_it_suggests_can_be_tested(zookeeper, root):
    """Hosts and a port, hosts with ports of their own and port 0 or any: the button connects, and shows no password.

    The form itself suggests the first of these. An empty port is Airflow's to get wrong: its API compares what its page
    posts for nothing, 0, with nothing, and refuses (3.3.2) or forgets the stored password (3.3.1).
    """
    extra = json.dumps({"root": root, "connect_timeout": 20})
    host, _, port = zookeeper.rpartition(":")
    with Zkmq.connect(zookeeper, root, gc=False, auth="ann:marker-password", connect_timeout=20) as zk:
        zk.queue("jobs").configure()
    ann = {"login": "ann", "password": "marker-password", "extra": extra}
    forms = [
        {"connection_id": "suggested", "host": f"{host},{host}", "port": int(port), **ann},
        {"connection_id": "zero", "host": f"{zookeeper},{zookeeper}", "port": 0, **ann},
        {"connection_id": "both", "host": zookeeper, "port": 1, **ann},
        {"connection_id": "empty", "host": zookeeper, **ann},
        {"connection_id": "wrong", "host": host, "port": int(port), **ann, "password": "marker-wrong"},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.airflow.api_server", json.dumps(forms)],
        cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    for name in ("suggested", "zero", "both"):
        code, told = answer["told"][name]
        assert (code, told["status"]) == (200, True), told
        assert "1 queue(s)" in told["message"]
    code, told = answer["told"]["empty"]
    assert (code == 400 and "differs from the stored connection" in str(told)) or code == 200
    code, told = answer["told"]["wrong"]
    assert (code, told["status"]) == (200, False)
    assert "ann" in told["message"]
    assert "marker-" not in done.stdout + done.stderr
    (form,) = answer["form"]
    assert ":" not in form["standard_fields"]["host"]["placeholder"]
    assert form["standard_fields"]["port"]["placeholder"] == "2181"


FOUND = """
import logging, os, sys
import airflow
from airflow import providers_manager
from airflow.sdk import providers_manager_runtime

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("airflow.providers.common.messaging.providers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

heard = []
class Heard(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING and "zkmq" in record.getMessage():
            heard.append(record.getMessage())

def look(there):
    if not there:
        sys.meta_path.insert(0, Absent())
    for module in (providers_manager, providers_manager_runtime):
        for name in {module.log.name, "airflow.providers_manager", "airflow.sdk.providers_manager_runtime"}:
            logging.getLogger(name).addHandler(Heard())
    managers = [providers_manager.ProvidersManager(), providers_manager_runtime.ProvidersManagerTaskRuntime()]
    for manager in managers:
        for name in dir(type(manager)):
            if name.startswith("initialize_"):
                getattr(manager, name)()
    found = [name for name in managers[0].queue_class_names if "zkmq" in name]
    assert found == ["airflow_provider_zkmq.queues.zkmq.ZkmqMessageQueueProvider"][:there], found
    for manager in managers:
        assert "zkmq" in manager.asset_uri_handlers and "zkmq" in manager.asset_factories
        assert "zkmq" in manager.asset_to_openlineage_converters
    providers = managers[0]
    assert "airflow-provider-zkmq" in providers.providers
    assert providers.field_behaviours["zkmq"]["placeholders"]["port"] == "2181"
    assert "extra__zkmq__root" in providers.connection_form_widgets
    assert "airflow_provider_zkmq.notifications.zkmq.ZkmqDeadLetterNotifier" in str(providers.notification)
    assert "airflow_provider_zkmq.triggers.events" in {info.trigger_class_name for info in providers.trigger}
    assert "get_zkmq_cli_commands" in {function.__name__ for function in providers.cli_command_functions}
    assert any("zkmq" in sections for _, sections in providers.provider_configs)
    assert not heard, heard

for there in eval(sys.argv[1]):
    if (child := os.fork()) == 0:
        try:
            look(there)
        except BaseException:
            logging.exception("with the common messaging provider" if there else "without it")
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_airflow_finds_it_all_and_warns_of_nothing():
    """All that Airflow's managers find of the provider is right, with the common messaging provider and without it."""
    cases = [False, True] if messaging_is_here() else [False]
    done = subprocess.run(
        [sys.executable, "-c", FOUND, str(cases)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in (done.stdout + done.stderr).splitlines() if "zkmq" in line and "warning" in line.lower()]
    assert not told


def messaging_is_here():
    """Whether Airflow's common messaging provider is installed."""
    try:
        return importlib.util.find_spec("airflow.providers.common.messaging") is not None
    except ModuleNotFoundError:
        return False


def test_without_the_messaging_provider_its_class_says_so(monkeypatch):
    """By the exception that Airflow knows, and with what to install."""
    monkeypatch.delitem(sys.modules, "airflow_provider_zkmq.queues.zkmq", raising=False)
    monkeypatch.setitem(sys.modules, "airflow.providers.common.messaging.providers.base_provider", None)
    with pytest.raises(AirflowOptionalProviderFeatureException, match=r"\[messaging\]"):
        importlib.import_module("airflow_provider_zkmq.queues.zkmq")


@pytest.mark.skipif(not messaging_is_here(), reason="the extra [messaging] is not installed")
def test_a_message_queue_trigger_of_our_scheme_is_our_trigger():
    """What `MessageQueueTrigger` is given besides the scheme is the trigger's; a watcher stores ours, not that."""
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

    made = MessageQueueTrigger(scheme="zkmq", zkmq_queue="orders", refire="5m")
    assert made.serialize() == ZkmqEventTrigger(zkmq_queue="orders", refire=300).serialize()
    assert type(made.trigger) is ZkmqEventTrigger
    with pytest.raises(ConfigError, match="'wake' or 'claim'"):
        MessageQueueTrigger(scheme="zkmq", mode="take").serialize()
