"""What an agent says of work that it did: how long it took, and what it used."""

from __future__ import annotations

import gc
import resource
import time

from airflow_provider_zkmq.bench.jobs import Run
from airflow_provider_zkmq.bench.lines import Answer


def measured(run: Run) -> Answer:
    """What the work took: seconds by the wall and of this process's processor time, and how often it had to wait."""
    gc.collect()
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    begun, wall, cpu = time.time(), time.perf_counter(), time.process_time()
    done = run()
    answer = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - wall, "begun": begun}
    waits = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches
    if done.seconds is not None:
        answer["seconds"] = done.seconds
    if done.memory is not None:
        answer["memory"] = done.memory
    return answer | {"ended": begun + answer["seconds"], "tasks": done.tasks, "waits": waits}
