"""The heap benchmark reads what ``jcmd`` tells."""

from __future__ import annotations

from tests.benchmarks.heap import counted

HISTOGRAM = """4711:
 num     #instances         #bytes  class name (module)
-------------------------------------------------------
   1:         18200        1456000  [B (java.base@17.0.15)
   2:            90         800000  [I (java.base@17.0.15)
   3:         12000         864000  org.apache.zookeeper.data.StatPersisted
Total         30290        3120000
"""


def test_the_bytes_of_all_classes_are_counted_but_what_fills_the_heap() -> None:
    """Neither the heading nor the total is a class."""
    assert counted(HISTOGRAM) == 1_456_000 + 864_000
