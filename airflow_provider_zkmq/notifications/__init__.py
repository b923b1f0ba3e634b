"""The Airflow notifiers of the queue."""
