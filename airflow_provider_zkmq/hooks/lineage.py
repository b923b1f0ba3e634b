"""OpenLineage: which queues a task of Airflow wrote, read or archived, by the names of their assets.

Airflow's provider for OpenLineage asks for it when a task has succeeded. Servers and root are those of the
connection, so that all who name a queue name one dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..environment import DEFAULT_ROOT, FILES

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset


class _NamesQueue:
    """An operator with a connection and a queue, and on which side of it the queue is."""

    _lineage_side: str
    zkmq_conn_id: str
    zkmq_queue: str | None

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage:  # noqa: ARG002
        """Return the queue as a dataset; nothing for queues in files. Raises `ConfigError`, which Airflow logs."""
        from airflow.providers.openlineage.extractors import OperatorLineage

        from ..assets.zkmq import convert_asset_to_openlineage

        asset = queue_asset(self.zkmq_conn_id, self.zkmq_queue)
        queues = [] if asset is None else [convert_asset_to_openlineage(asset, None)]
        return OperatorLineage(**{self._lineage_side: queues})


class WritesQueue(_NamesQueue):
    """Says that an operator's output is the queue of its ``zkmq_conn_id`` and ``zkmq_queue``."""

    _lineage_side = "outputs"


class ReadsQueue(_NamesQueue):
    """Says that an operator's input is the queue of its ``zkmq_conn_id`` and ``zkmq_queue``."""

    _lineage_side = "inputs"


def queue_asset(conn_id: str, queue: str | None) -> Asset | None:
    """Return the asset of a connection's queue (None: its own); None for queues in files. Raises `ConfigError`."""
    from ..assets.zkmq import create_asset
    from .connection_options import look_up_options

    options = look_up_options(conn_id)
    if options["hosts"].startswith(FILES):
        return None
    root = options.get("root", DEFAULT_ROOT)
    return create_asset(hosts=options["hosts"], root=root, queue=queue or options["queue"])


def record_lineage(conn_id: str, queue: str, archive: str) -> None:
    """Say that the task under way reads a queue and writes its archive, an address; by Airflow's collector."""
    from airflow.sdk.lineage import get_hook_lineage_collector

    from .zkmq import ZkmqHook

    asset = queue_asset(conn_id, queue)
    collector = get_hook_lineage_collector()
    hook = ZkmqHook(conn_id, queue)
    if asset is not None:
        collector.add_input_asset(hook, uri=asset.uri)
    collector.add_output_asset(hook, uri=archive)
