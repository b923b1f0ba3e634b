from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_zkmq.engine import OrderedEnum, Queue, Zkmq
from tests.faulty import Faulty
from tests.integration.fronts import KINDS, connected
from tests.support import fresh_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSES = OrderedEnum("low", "standard", "performance", "high_performance")


@pytest.fixture
def root() -> str:
    return fresh_root()


@pytest.fixture
def zk(zookeeper: str, root: str) -> Iterator[Zkmq]:
    with Zkmq.connect(zookeeper, root=root, session_timeout=15, gc=False) as client:
        yield client


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    queue = zk.queue("census")
    queue.configure(filters={"performance_class": CLASSES})
    return queue


@pytest.fixture
def where(zookeeper: str, root: str) -> dict[str, str]:
    """Where the queues of the test are: arguments of `Zkmq.connect`, and options of the data source."""
    return {"hosts": zookeeper, "root": root}


@pytest.fixture
def other(zookeeper: str, root: str) -> Iterator[Zkmq]:
    """A client beside that of the test."""
    with Zkmq.connect(zookeeper, root=root, session_timeout=15, gc=False) as client:
        yield client


@pytest.fixture(params=KINDS)
def front(request: pytest.FixtureRequest, zookeeper: str, root: str) -> Iterator[Any]:
    """A client beside that of the test, of either front; both are called in the blocking way."""
    with connected(request.param, zookeeper, root=root, session_timeout=15, gc=False) as client:
        yield client


@pytest.fixture
def door(zookeeper: str) -> Iterator[Faulty]:
    """A way to the server that fails as it is told to."""
    with Faulty(zookeeper) as made:
        yield made


@pytest.fixture(scope="session")
def spark(s3: str) -> Iterator[SparkSession]:
    """One Spark session for all tests, with two partitions, whose Python workers have the keys to `s3`."""
    pytest.importorskip("pyspark")
    from airflow_provider_zkmq.spark.session import spark_session

    session = spark_session("zkmq-tests", master="local[2]", **{"spark.driver.memory": "1g"})
    yield session
    session.stop()


#: What pays off for large data only: compiling each query, and planning it anew after each of its parts.
QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    """The session for tests of what is committed, or told, and not of what Spark computes."""
    before = {name: spark.conf.get(name) for name in QUICK}
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def taken(queue: Any, **wanted: Any) -> Any:
    """The claim of the next task of a queue, which is there or comes."""
    claim = queue.claim(**wanted)
    assert claim is not None
    return claim


def started(call: Callable[[], Any]) -> Future[Any]:
    """A call under way in a thread of its own."""
    return ThreadPoolExecutor(1).submit(call)


def waits(queue: Any) -> int:
    """How many calls of a client wait for its queue to change."""
    return len(queue._context.signal._callbacks)
