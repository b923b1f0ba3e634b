"""The Airflow operators of the queue."""
