"""What imports what: Airflow's processes pay for nothing of ours before they need it. Each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parents[2]


def told(code: str) -> list[str]:
    """What such a process says, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


METADATA = """
import sys
from airflow_provider_zkmq.provider_info import get_provider_info
get_provider_info()
assert not {"airflow", "kazoo"} & set(sys.modules)
from airflow_provider_zkmq.operators import lineage
assert not [name for name in sys.modules if "openlineage" in name or name == "airflow"]
"""


def test_the_metadata_and_the_lineage_are_read_without_airflow():
    """The provider scan imports neither Airflow nor kazoo; without OpenLineage's provider nothing of it is imported."""
    assert told(METADATA) == []


COMMAND = """
import atexit, sys
import airflow.cli.cli_config, airflow_provider_zkmq
before = set(sys.modules)
from airflow_provider_zkmq.commands.definition import get_zkmq_cli_commands
get_zkmq_cli_commands()
print(sorted(name for name in set(sys.modules) - before if "zkmq" in name))
atexit.register(lambda: print([name for name in sys.modules if name == "kazoo" or "zkmq.engine" in name]))
sys.argv = ["airflow", "zkmq", "--help"]
from airflow.__main__ import main
main()
"""


def test_airflow_knows_the_command_and_imports_little_for_it():
    """At each start only where it is said; for ``airflow zkmq --help`` neither the engine nor kazoo."""
    at_start, *usage, at_end = told(COMMAND)
    assert at_start == str(["airflow_provider_zkmq.commands", "airflow_provider_zkmq.commands.definition"])
    assert "--conn-id" in "\n".join(usage)
    assert at_end == "[]"


TRIGGERER = """
import gc, os, sys, airflow.triggers.base, airflow.sdk
before = set(sys.modules)
assert "pendulum" in before
import airflow_provider_zkmq.triggers.zkmq
print(*sorted(set(sys.modules) - before))
import airflow_provider_zkmq.triggers.events
print(*sorted(set(sys.modules) - before))
from airflow_provider_zkmq.triggers import sessions
for option in ("False", "True", None):
    os.environ["AIRFLOW__ZKMQ__FREEZE_IMPORTS"] = option or ""
    if option is None:
        del os.environ["AIRFLOW__ZKMQ__FREEZE_IMPORTS"]
    gc.unfreeze()
    sessions._spare_imports.cache_clear()
    sessions.load_client()
    first = gc.get_freeze_count()
    more = [[] for _ in range(100_000)]
    sessions.load_client()
    print(first > 10_000, gc.get_freeze_count() < first + 1_000)
"""


def test_triggers_bring_little_into_the_triggerer():
    """They are imported on the loop, which stands still meanwhile: few and small modules of ours, and no kazoo.

    The collector passes by what was imported, once in a process, before its first session: no full collection of all
    of Airflow stops the loop, unless that is switched off.
    """
    first, both, *frozen = told(TRIGGERER)
    new, all_new = (
        [name for name in line.split() if name.partition(".")[0] not in sys.stdlib_module_names]
        for line in (first, both)
    )
    ours = [name for name in new if name.startswith("airflow_provider_zkmq")]
    assert {name.partition(".")[0] for name in new} <= {"airflow", "airflow_provider_zkmq"}
    assert not [name for name in ours if ".engine.zk" in name or ".engine.fronts" in name]
    assert len(ours) <= 24
    assert {name.partition(".")[0] for name in all_new} <= {"airflow", "airflow_provider_zkmq", "kazoo"}
    assert frozen == ["False True", "True True", "True True"]
