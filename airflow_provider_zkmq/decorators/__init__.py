"""The Airflow task decorators of the queue."""
