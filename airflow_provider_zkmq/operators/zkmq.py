"""The operators and the task group: import them from here."""

from __future__ import annotations

from .claiming import ZkmqClaimOperator
from .enqueuing import ZkmqEnqueueOperator
from .export_import import ZkmqExportOperator, ZkmqImportOperator
from .leases import ZkmqKeepOperator
from .settling import ZkmqSettleOperator
from .task_group import ZkmqTaskGroup

__all__ = [
    "ZkmqClaimOperator",
    "ZkmqEnqueueOperator",
    "ZkmqExportOperator",
    "ZkmqImportOperator",
    "ZkmqKeepOperator",
    "ZkmqSettleOperator",
    "ZkmqTaskGroup",
]
