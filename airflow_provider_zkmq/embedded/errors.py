"""The one error of the embedded ZooKeeper: it could not be started, reached or kept running."""

from __future__ import annotations

from airflow_provider_zkmq.engine import ZkmqError


class ServerError(ZkmqError):
    """The embedded ZooKeeper or the Java it needs cannot be used; the text names the remedy."""
