"""A server in a process of its own that speaks as S3 does: `moto`'s, which keeps all in memory.

``python -m tests.s3`` serves until its standard input ends, so nothing of it outlives whoever started it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from pyarrow.fs import S3FileSystem

from airflow_provider_zkmq.location import Location

KEY, SECRET = "AKIAFORTESTS", "s3cr3t-of-the-tests"


@contextmanager
def _served() -> Iterator[str]:
    """The server's address."""
    command = [sys.executable, "-m", "tests.s3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.wait(30)


def _environment(address: str) -> dict[str, str]:
    """What programs for S3 are told by."""
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-1"}
    return {**keys, "AWS_ENDPOINT_URL": address, "AWS_EC2_METADATA_DISABLED": "true"}


def _new_bucket(address: str) -> str:
    """The name of an empty bucket."""
    name = f"bucket-{os.urandom(6).hex()}"
    where = urlsplit(address)
    keys = {"access_key": KEY, "secret_key": SECRET, "region": "eu-west-1"}
    files = S3FileSystem(**keys, scheme=where.scheme, endpoint_override=where.netloc, allow_bucket_creation=True)
    files.create_dir(name)
    return name


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A server that speaks as S3 does; the environment has its address and the keys, as long as the process lives."""
    pytest.importorskip("moto")
    with _served() as address:
        os.environ.update(_environment(address))
        yield address


@pytest.fixture
def bucket(s3: str) -> Location:
    """A place in a new bucket."""
    return Location(f"s3://{_new_bucket(s3)}/archive")


def _serve() -> None:
    """Serve at a free port, which is told in one line."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve()
