"""`ZkmqMessageQueueProvider`: ``MessageQueueTrigger(scheme="zkmq", …)`` of Airflow's common messaging provider.

Without that provider (extra ``[messaging]``) importing it raises what Airflow knows to be no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
except ImportError as error:
    raise AirflowOptionalProviderFeatureException(
        "MessageQueueTrigger(scheme='zkmq') needs Airflow's common messaging provider: "
        "pip install 'airflow-provider-zkmq[messaging]'; ZkmqEventTrigger does not need it"
    ) from error

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class ZkmqMessageQueueProvider(BaseMessageQueueProvider):
    """Makes a `ZkmqEventTrigger` of ``MessageQueueTrigger(scheme="zkmq", …)`` and its other arguments."""

    scheme = "zkmq"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger that `scheme` stands for."""
        from ..triggers.asset_watcher import ZkmqEventTrigger

        return ZkmqEventTrigger

    # Releases of that provider before 2.1 do not make a class without these two, which are of its deprecated `queue`.

    def queue_matches(self, queue: str) -> bool:  # noqa: ARG002
        """Return False: queues are named by `zkmq_queue`, not by a URI in the deprecated argument `queue`."""
        return False

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing: see `queue_matches`."""
        return {}
