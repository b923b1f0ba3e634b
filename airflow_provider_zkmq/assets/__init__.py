"""Queues as Airflow's assets."""
