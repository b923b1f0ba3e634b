"""A durable task queue on Apache ZooKeeper, living inside Apache Airflow."""

from __future__ import annotations

__version__ = "0.1.0"
