"""What Airflow reads about the provider, and what it imports of it: nothing before it is needed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import airflow
import jsonschema
import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

from airflow_provider_zkmq import airflow_release
from airflow_provider_zkmq.engine import ConfigError, ConnectionConfig, Zkmq
from airflow_provider_zkmq.hooks import connection_options, settings
from airflow_provider_zkmq.provider_info import get_provider_info
from airflow_provider_zkmq.triggers.asset_watcher import ZkmqEventTrigger

TOP = Path(__file__).parents[2]


def test_every_class_and_module_named_exists():
    """Airflow's schema accepts the info, all that it names can be imported, and the hook says of itself the same."""
    info = get_provider_info()
    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
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


def test_configuration_and_form_have_exactly_what_is_read():
    """The options with the same defaults, each of which says what it is for; no field is ignored, and none missing."""
    info = get_provider_info()
    options = info["config"]["zkmq"]["options"]
    assert {name: option["default"] for name, option in options.items()} == settings.DEFAULTS
    assert all(option["description"].endswith(".") for option in options.values())
    [declared] = info["connection-types"]
    assert set(declared["conn-fields"]) == set(connection_options._KNOWN)
    assert ":" not in declared["ui-field-behaviour"]["placeholders"]["host"], "a port has a field of its own"


@pytest.mark.parametrize("host", ["zk:2181", "textqueue://"])
def test_a_connection_saved_by_the_untouched_form_can_be_used(host, tmp_path):
    """Of servers and of queue files: the form's defaults, which Airflow saves as if they had been said, fit both."""
    form = get_provider_info()["connection-types"][0]["conn-fields"]
    extra = json.dumps({name: field["schema"].get("default") for name, field in form.items()})
    made = connection_options.connection_options(Connection(conn_id="c", conn_type="zkmq", host=host, extra=extra))
    given = {name: value for name, value in made.items() if name not in ("hosts", "queue")}
    assert "default" not in form["queue"]["schema"]
    if host.startswith("zk"):
        assert ConnectionConfig.of(host, **given) == ConnectionConfig.of(host)
    else:
        with Zkmq.connect(f"{host}{tmp_path}", **given) as files:
            assert files.queues() == []


#: Imports on and on, as Airflow's processes do, and forks for each piece of code: none sees what another has imported.
FORKS = """
import json, os, sys
for name, imports, code in json.loads(sys.argv[1]):
    exec(imports)
    print(name, flush=True)
    if os.fork() == 0:
        exec(code, {})
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0, name
"""

METADATA = """
import sys
from airflow_provider_zkmq.provider_info import get_provider_info
get_provider_info()
assert not {"airflow", "kazoo"} & set(sys.modules)
from airflow_provider_zkmq.hooks import lineage
assert not [name for name in sys.modules if "openlineage" in name or name == "airflow"]
"""

TRIGGERER = """
import sys
before = set(sys.modules)
assert "pendulum" in before
import airflow_provider_zkmq.triggers.zkmq, airflow_provider_zkmq.triggers.leases
print(*sorted(set(sys.modules) - before))
import airflow_provider_zkmq.triggers.asset_watcher
print(*sorted(set(sys.modules) - before))
"""

PARSED = """
import runpy, sys
from pathlib import Path
before = set(sys.modules)
for path in sorted(Path("example_dags").glob("zkmq_*.py")):
    runpy.run_path(str(path))
import airflow_provider_zkmq.operators.zkmq
print(*sorted(set(sys.modules) - before))
"""

COMMAND = """
import sys
before = set(sys.modules)
from airflow_provider_zkmq.commands.definition import get_zkmq_cli_commands
get_zkmq_cli_commands()
print(sorted(name for name in set(sys.modules) - before if "zkmq" in name))
sys.argv = ["airflow", "zkmq", "--help"]
from airflow.__main__ import main
try:
    main()
except SystemExit as left:
    assert not left.code
print([name for name in sys.modules if name == "kazoo" or "zkmq.engine" in name])
"""

FOUND = """
import logging, sys
from airflow import providers_manager
from airflow.sdk import providers_manager_runtime

heard = []
class Heard(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING and "zkmq" in record.getMessage():
            heard.append(record.getMessage())

if not there:
    sys.modules["airflow.providers.common.messaging.providers.base_provider"] = None
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
assert "airflow_provider_zkmq.notifications.dead_letters.ZkmqDeadLetterNotifier" in str(providers.notification)
assert "airflow_provider_zkmq.triggers.asset_watcher" in {info.trigger_class_name for info in providers.trigger}
assert "get_zkmq_cli_commands" in {function.__name__ for function in providers.cli_command_functions}
assert any("zkmq" in sections for _, sections in providers.provider_configs)
assert not heard, heard
"""


def messaging_is_here():
    """Whether Airflow's common messaging provider is installed."""
    try:
        return importlib.util.find_spec("airflow.providers.common.messaging") is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="session")
def claim_reference():
    """What each piece of code says, line by line, and the standard error of all."""
    pieces = [
        ("=metadata", "", METADATA),
        ("=triggerer", "import airflow.triggers.base, airflow.sdk", TRIGGERER),
        ("=parsed", "", PARSED),
        ("=command", "import airflow.cli.cli_config, airflow_provider_zkmq", COMMAND),
        ("=found", "import airflow.providers_manager", f"there = False\n{FOUND}"),
    ]
    if messaging_is_here():
        pieces.append(("=found with messaging", "", f"there = True\n{FOUND}"))
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps(pieces)],
        cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, *parts = re.split(r"^=(.*)\n", done.stdout, flags=re.MULTILINE)
    said = {name: text.splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return {**said, "errors": done.stderr.splitlines()}


def test_the_metadata_and_the_lineage_are_read_without_airflow(claim_reference):
    """The provider scan imports neither Airflow nor kazoo; without OpenLineage's provider nothing of it is imported."""
    assert claim_reference["metadata"] == []


def test_airflow_knows_the_command_and_imports_little_for_it(claim_reference):
    """At each start only where it is said; for ``airflow zkmq --help`` neither the engine nor kazoo."""
    at_start, *usage, at_end = claim_reference["command"]
    assert at_start == str(["airflow_provider_zkmq.commands", "airflow_provider_zkmq.commands.definition"])
    assert "--conn-id" in "\n".join(usage)
    assert at_end == "[]"


def test_triggers_bring_little_into_the_triggerer(claim_reference):
    """No kazoo, and few modules, on the loop."""
    new, all_new = (
        [name for name in line.split() if name.partition(".")[0] not in sys.stdlib_module_names]
        for line in claim_reference["triggerer"]
    )
    ours = [name for name in new if name.startswith("airflow_provider_zkmq")]
    assert {name.partition(".")[0] for name in new} <= {"airflow", "airflow_provider_zkmq"}
    assert not [name for name in ours if ".engine.zk" in name or ".engine.api" in name]
    assert len(ours) <= 27
    assert {name.partition(".")[0] for name in all_new} <= {"airflow", "airflow_provider_zkmq", "kazoo"}


def test_reading_dags_loads_neither_kazoo_nor_the_engine(claim_reference):
    """All operators and example DAGs: names and records alone, no fronts, protocol, workers, queue files or Spark."""
    names = claim_reference["parsed"][-1].split()
    ours = [name.removeprefix("airflow_provider_zkmq.") for name in names if name.startswith("airflow_provider_zkmq.")]
    assert "operators.export_import" in ours
    assert not [name for name in names if name.partition(".")[0] in ("kazoo", "pyspark")]
    own = r"engine\.(?!core$|core\.model|config$|errors$|queue_internals$)"
    deep = rf"{own}|filequeue|textqueue|editing|cli|embedded|spark"
    assert not [name for name in ours if re.match(deep, name)]


def test_airflow_finds_it_all_and_warns_of_nothing(claim_reference):
    """All that Airflow's managers find of the provider is right, with the common messaging provider and without it."""
    said = [*claim_reference["errors"], *claim_reference["found"], *claim_reference.get("found with messaging", ())]
    assert not [line for line in said if "zkmq" in line and "warning" in line.lower()]


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


@pytest.mark.parametrize("release", ["2.11.0", "3.2.2", "3.3.0"])
def test_an_airflow_that_is_too_old_is_refused_in_one_sentence(release):
    """Which names what is needed, what is there, and what to install."""
    with pytest.raises(ImportError, match=rf"needs Airflow 3\.3\.1 or newer: pip install .*; this is {release}"):
        airflow_release.check(release)


@pytest.mark.parametrize("missing", ["None", "types.ModuleType('airflow')"], ids=["no airflow", "a folder"])
def test_without_airflow_an_operator_says_what_to_install(missing):
    """Also where a folder is named so, as Airflow's home often is, which Python takes for an empty package."""
    code = f"import sys, types; sys.modules['airflow'] = {missing}; import airflow_provider_zkmq.operators.zkmq"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=TOP)
    assert done.stderr.splitlines()[-1].endswith("pip install 'airflow-provider-zkmq[airflow]'; there is none")


def test_the_oldest_airflow_is_that_of_the_extra():
    """The check and what pip resolves say the same."""
    assert f'"apache-airflow>={airflow_release.OLDEST},<4"' in (TOP / "pyproject.toml").read_text()


def test_newer_releases_of_airflow_are_taken():
    """Also those before a release."""
    for release in ("3.3.1", "3.4.0.dev0", "3.10.0rc1"):
        airflow_release.check(release)
