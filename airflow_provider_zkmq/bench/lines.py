"""An agent's side of the conversation: each line of words is answered with a line of JSON, until the input ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from airflow_provider_zkmq.bench.jobs import SkippedError

Answer = dict[str, Any]


def serve(answer: Callable[..., Answer]) -> None:
    """Answer everything that is asked on standard input."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answered(answer, line)) + "\n")
        sys.stdout.flush()


def _answered(answer: Callable[..., Answer], line: str) -> Answer:
    """An answer, also where there is none."""
    try:
        return answer(*line.split())
    except SkippedError as reason:
        return {"skipped": str(reason)}
    except Exception as error:  # noqa: BLE001  the benchmark says it, and ends
        return {"error": f"{type(error).__name__}: {error}"}
