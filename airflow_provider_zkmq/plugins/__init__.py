"""The Airflow plugin: the page of queues in Airflow's UI."""
