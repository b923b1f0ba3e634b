"""The engine's logger: what nobody is waiting for is told there."""

from __future__ import annotations

import logging
from typing import Final

log: Final = logging.getLogger("airflow_provider_zkmq")
