"""What Airflow reads about ``airflow zkmq``: read at each start of ``airflow``, so that it imports little."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

_DESCRIPTION: Final = """\
Run a command of zkmq on the queues of an Airflow connection, such as

  airflow zkmq queues
  airflow zkmq --conn-id zkmq_other show orders invoice-7 --json
  airflow zkmq dead redrive orders --all

What comes after the verb is as in zkmq VERB. "airflow zkmq help" lists the verbs, "airflow zkmq VERB --help" tells of
one. The connection is looked up as the scheduler does: in the environment, the secrets backends and Airflow's database.
Its hosts, root and credentials come in the place of the variables ZKMQ_*."""


def get_zkmq_cli_commands() -> list[CLICommand]:
    """Return the commands that this provider adds to ``airflow``."""
    from airflow.cli.cli_config import ActionCommand, Arg, lazy_load_command

    return [
        ActionCommand(
            name="zkmq",
            help="Look at queues on ZooKeeper, and operate them",
            description=_DESCRIPTION,
            func=lazy_load_command("airflow_provider_zkmq.commands.zkmq.run"),
            args=(
                Arg(("--conn-id",), help="the Airflow connection (zkmq_default)", metavar="ID", default="zkmq_default"),
                Arg(("words",), help="a verb of zkmq and its arguments", metavar="VERB …", nargs=argparse.REMAINDER),
            ),
        )
    ]
