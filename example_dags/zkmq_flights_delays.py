"""What the workers of the example on flights do with a task: sum up the delays of one carrier's day."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

#: A flight that arrives so many minutes behind its schedule is late, as the U.S. Department of Transportation counts.
LATE_MINUTES = 15


def delays(task: Any) -> str:
    """Sum up the flights in the task's data by airport and hour.

    Returns a JSON array with an object for each: origin, time_hour (UTC), local_hour, flights, cancelled, late, and
    minutes, the sum of the delays at arrival, to which a flight that came early adds nothing.
    """
    sums: dict[tuple[str, str, int], dict[str, int]] = defaultdict(
        lambda: {"flights": 0, "cancelled": 0, "late": 0, "minutes": 0}
    )
    for flight in json.loads(task.data):
        one = sums[flight["origin"], flight["time_hour"], flight["hour"]]
        delay = flight.get("arr_delay")
        one["flights"] += 1
        one["cancelled"] += delay is None
        one["late"] += delay is not None and delay >= LATE_MINUTES
        one["minutes"] += max(0, int(delay or 0))
    return json.dumps(
        [
            {"origin": origin, "time_hour": hour, "local_hour": local, **one}
            for (origin, hour, local), one in sorted(sums.items())
        ]
    )
