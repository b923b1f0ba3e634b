"""A real Apache ZooKeeper server for development and tests, run from the jars that PySpark ships.

Importing this package starts nothing and loads neither PySpark nor a ZooKeeper client. Production
brings its own ensemble: this server lets in anyone who reaches it, on loopback unless told otherwise.
"""

from .configuration import ServerError, ServerTls
from .foreground import ready, serve_until_stopped, warning
from .java import Java, find_java, spark_jars, spark_java_home
from .node import read_metrics
from .server import EmbeddedServer, is_loopback

__all__ = [
    "EmbeddedServer",
    "Java",
    "ServerError",
    "ServerTls",
    "find_java",
    "is_loopback",
    "read_metrics",
    "ready",
    "serve_until_stopped",
    "spark_jars",
    "spark_java_home",
    "warning",
]
