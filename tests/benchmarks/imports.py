"""What each Airflow process pays for what DAGs import; each import in a fresh process."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("operators.zkmq", "sensors.zkmq", "decorators.zkmq", "triggers.zkmq", "hooks.zkmq")
CODE = """
import sys, time
from airflow.sdk import BaseNotifier, BaseSensorOperator, conf
before, begun = len(sys.modules), time.process_time()
__import__("airflow_provider_zkmq." + sys.argv[1])
print(f"{sys.argv[1]:20} {1000 * (time.process_time() - begun):6.0f} ms {len(sys.modules) - before:>5} modules")
"""

if __name__ == "__main__":
    for module in MODULES:
        subprocess.run([sys.executable, "-c", CODE, module], check=True)
