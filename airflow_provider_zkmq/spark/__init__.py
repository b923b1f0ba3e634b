"""Queues as DataFrames, what ended as Delta tables, and what these answer. Needs the extra ``[spark]``.

Importing this package loads neither PySpark nor a ZooKeeper client: what stands in the stub beside this file is
imported on first use.
"""

from ..lazy_imports import lazily

__all__, __getattr__ = lazily(__name__)
