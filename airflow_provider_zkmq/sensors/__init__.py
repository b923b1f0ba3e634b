"""The Airflow sensors of the queue."""

from .. import airflow_release as airflow_release  # refuses an Airflow that is too old, in one sentence
