"""``airflow zkmq``: the command line with an Airflow connection."""
