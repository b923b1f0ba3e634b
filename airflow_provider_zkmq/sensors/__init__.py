"""The Airflow sensors of the queue."""
