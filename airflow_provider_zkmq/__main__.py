"""``python -m airflow_provider_zkmq`` is ``zkmq``."""

from .cli.main import entry

if __name__ == "__main__":
    entry()
