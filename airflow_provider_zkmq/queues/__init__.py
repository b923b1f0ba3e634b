"""The queue as Airflow's common messaging provider knows it."""
