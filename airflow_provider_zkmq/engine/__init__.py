"""The queue engine: it knows ZooKeeper, and nothing of Airflow or Spark.

What stands in the stub beside this file is imported on first use: neither `zkmq --help` nor Airflow's look at its
providers pays for kazoo.
"""

from ..lazy_imports import lazily

__all__, __getattr__ = lazily(__name__)
