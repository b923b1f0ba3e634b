"""The Airflow hook of the queue."""
