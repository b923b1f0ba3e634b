"""A real Apache ZooKeeper server for development and tests, run from the jars that PySpark ships.

Importing this package starts nothing and loads neither PySpark nor a ZooKeeper client. Production
brings its own ensemble: this server listens without authentication, on loopback unless told otherwise.
"""

from airflow_provider_zkmq.embedded.errors import ServerError
from airflow_provider_zkmq.embedded.java import Java, find_java, spark_java_home
from airflow_provider_zkmq.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "Java", "ServerError", "find_java", "spark_java_home"]
