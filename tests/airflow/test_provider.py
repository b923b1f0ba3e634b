"""What Airflow reads about the provider."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from airflow.sdk import Asset, Connection
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

from airflow_provider_zkmq.assets.zkmq import convert_asset_to_openlineage, create_asset
from airflow_provider_zkmq.engine import ConfigError, ConnectionConfig, Zkmq
from airflow_provider_zkmq.hooks import connections, settings
from airflow_provider_zkmq.provider_info import get_provider_info
from airflow_provider_zkmq.triggers.events import ZkmqEventTrigger


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


def test_airflow_finds_the_connection_type():
    """The installed package is found by its entry point, with its form, without importing the hook."""
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    manager.initialize_providers_hooks()
    assert "airflow-provider-zkmq" in manager.providers
    assert manager.field_behaviours["zkmq"]["placeholders"]["port"] == "2181"
    assert "extra__zkmq__root" in manager.connection_form_widgets


@pytest.mark.parametrize("there", [False, True])
def test_airflow_warns_of_nothing(there):
    """All that Airflow's managers find of the provider is right, with the common messaging provider and without it."""
    if there and not messaging_is_here():
        pytest.skip("the extra [messaging] is not installed")
    code = f"""
import logging, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("airflow.providers.common.messaging.providers"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
if not {there}:
    sys.meta_path.insert(0, Absent())
import airflow
heard = []
class Heard(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING and "zkmq" in record.getMessage():
            heard.append(record.getMessage())
from airflow import providers_manager
from airflow.sdk import providers_manager_runtime
for module in (providers_manager, providers_manager_runtime):
    for name in {{module.log.name, "airflow.providers_manager", "airflow.sdk.providers_manager_runtime"}}:
        logging.getLogger(name).addHandler(Heard())
managers = [providers_manager.ProvidersManager(), providers_manager_runtime.ProvidersManagerTaskRuntime()]
for manager in managers:
    for name in dir(type(manager)):
        if name.startswith("initialize_"):
            getattr(manager, name)()
found = [name for name in managers[0].queue_class_names if "zkmq" in name]
assert found == ["airflow_provider_zkmq.queues.zkmq.ZkmqMessageQueueProvider"][: {there}], found
for manager in managers:
    assert "zkmq" in manager.asset_uri_handlers and "zkmq" in manager.asset_factories
    assert "zkmq" in manager.asset_to_openlineage_converters
providers = managers[0]
assert "airflow_provider_zkmq.notifications.zkmq.ZkmqDeadLetterNotifier" in str(providers.notification)
assert "airflow_provider_zkmq.triggers.events" in {{info.trigger_class_name for info in providers.trigger}}
assert "get_zkmq_cli_commands" in {{function.__name__ for function in providers.cli_command_functions}}
assert any("zkmq" in sections for _, sections in providers.provider_configs)
assert not heard, heard
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
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


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("zkmq://zk1:2181/zkmq/orders", "zkmq://zk1:2181/zkmq/orders"),
        ("zkmq://ZK2,zk1:2182/team/queues/orders/", "zkmq://zk1:2182,zk2:2181/team/queues/orders"),
        ("zkmq://zk1:02181,[::1]/zkmq/orders", "zkmq://[::1]:2181,zk1:2181/zkmq/orders"),
    ],
)
def test_a_queue_has_one_asset_uri(written, kept):
    """Hosts are in order and in lower case, with their ports: whoever names the same queue names the same asset."""
    assert Asset(uri=written).uri == kept


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("zkmq://zk1/orders", "names no queue"),
        ("zkmq:///zkmq/orders", "names no queue"),
        ("zkmq://zk1/zkmq/or,ders", "queue 'or,ders' is not allowed"),
        ("zkmq://zk1:0/zkmq/orders", "hosts 'zk1:0'"),
        ("zkmq://zk1/zkmq/orders?a=b", "more than which queue"),
        ("zkmq://ann@zk1/zkmq/orders", "more than which queue"),
        ("zkmq://us:ann?x@zk1/zkmq/orders", "names no queue"),
        ("zkmq://us:ann/x@zk1/zkmq/orders", "hosts that are not understood"),
        ("zkmq://us:Ann#x@zk1/zkmq/orders", "names no queue"),
        ("zkmq://us:12ann/zkmq/orders", "hosts that are not understood"),
        ("zkmq://z%6b1/zkmq/orders", "hosts that are not understood"),
    ],
)
def test_an_asset_uri_that_names_no_queue_is_refused(uri, told):
    """Where the DAG is parsed, with what is wrong; no user is shown, and no part of a password in the hosts' place."""
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        Asset(uri=uri)
    assert "ann" not in str(caught.value).lower()


def test_assets_are_made_of_their_parts_and_told_to_lineage(monkeypatch):
    """The factory's asset has the URI of its queue, and its dataset names servers and znode."""
    from airflow.providers.common.compat.openlineage import facet

    made = create_asset(hosts="zk2,zk1", queue="orders", extra={"a": 1})
    assert (made.uri, made.extra) == ("zkmq://zk1:2181,zk2:2181/zkmq/orders", {"a": 1})
    assert made.name == made.uri == create_asset(hosts="ZK1:2181,zk2", queue="orders", root="zkmq/").name
    for queue in ("orders#1", "orders?1"):  # what follows would be no part of the path
        with pytest.raises(ConfigError, match="is not allowed"):
            create_asset(hosts="zk1", queue=queue)
    monkeypatch.setattr(facet, "Dataset", lambda **parts: parts)
    dataset = convert_asset_to_openlineage(made, None)
    assert dataset == {"namespace": "zkmq://zk1:2181,zk2:2181", "name": "zkmq/orders"}
