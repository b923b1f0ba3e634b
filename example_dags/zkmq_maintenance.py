"""The maintenance DAG of the connection ``zkmq_default``.

It runs daily; the environment variable ``ZKMQ_MAINTENANCE_SCHEDULE`` sets another schedule, empty: none.
"""

import os

from airflow_provider_zkmq.maintenance_dag import maintenance_dag

dag = maintenance_dag(schedule=os.environ.get("ZKMQ_MAINTENANCE_SCHEDULE", "@daily") or None)
