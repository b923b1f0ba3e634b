"""Operators that enqueue and wait; the process of the first try of each is killed right after its write."""

from __future__ import annotations

import os
import signal
from typing import Any

from airflow.sdk import DAG

from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator


class KilledOnce(ZkmqEnqueueOperator):
    """Dies when it has written, unless it is tried again."""

    def execute(self, context: Any) -> Any:
        """Enqueue as ever."""
        self.first = context["ti"].try_number == 1
        return super().execute(context)

    def _await(self, *args: Any) -> None:
        if self.first:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._await(*args)


with DAG("killed_enqueue", schedule=None, default_args={"retries": 1, "retry_delay": 1, "zkmq_queue": "killed"}):
    options = {"wait_for_completion": True, "deferrable": True, "timeout": 1800}
    KilledOnce(task_id="one", data="one", **options)
    KilledOnce(task_id="many", messages=["a", "b", "c"], **options)
    KilledOnce(task_id="batch", messages=["d", "e"], batch="{{ dag.dag_id }}.{{ run_id }}", **options)
