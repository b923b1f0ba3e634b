"""All verbs of the command line, whose modules it imports when it needs them itself."""

from __future__ import annotations

from importlib import import_module

from airflow_provider_zkmq.cli import main, verbs

for _module in main.MODULES:
    import_module(f"airflow_provider_zkmq.cli.{_module}")
VERBS = verbs.VERBS
