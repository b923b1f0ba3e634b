"""The Airflow triggers of the queue."""
