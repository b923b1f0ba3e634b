"""Where an archive is: a folder, or an address in S3 or in a store that speaks as S3 does.

A location has no secrets, so that Spark may write it into plans and logs. Keys are looked up where they are used: in
the Airflow connection that it names, else in the environment, as programs for S3 do (``AWS_ACCESS_KEY_ID`` and so on).
Executors import this: it needs pyarrow alone.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyarrow import fs

from .engine import ConfigError, ZkmqError

_S3: Final = "s3://"
#: What a store is asked with, and where the environment says it; the names are those of `deltalake`.
_ENVIRONMENT: Final = {
    "aws_access_key_id": ("AWS_ACCESS_KEY_ID",),
    "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "aws_session_token": ("AWS_SESSION_TOKEN",),
    "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "aws_endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
#: The same in the extra of a connection of type ``aws``, whose login and password are the key and its secret.
_EXTRA: Final = {
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint_url",
}
#: `deltalake` lets no other thread run while it waits, and so no heartbeat of a ZooKeeper session.
_TIMEOUTS: Final = {"retry_timeout": "10s", "connect_timeout": "5s", "timeout": "30s"}
_DRAWN: Final = re.compile(r"\x1b\[[0-9;]*m|[↳\s]+")
_ANSWER: Final = re.compile(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", re.DOTALL)


class StoreFailed(ZkmqError):
    """A store of objects refused a request, or did not answer; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Location:
    """A folder's path, or an address: ``s3://bucket/prefix``. ``s3a://`` means the same.

    `conn_id`: the Airflow connection, of type ``aws``, with the keys to an address; None: the environment has them, or
    the machine's role. Raises `ConfigError` for an address of another kind.
    """

    address: str
    conn_id: str | None = None

    def __post_init__(self) -> None:
        address = self.address.replace("s3a://", _S3, 1) if self.address.startswith("s3a://") else self.address
        if "://" not in address:
            address = str(Path(address).absolute())
            if self.conn_id is not None:
                raise ConfigError(f"the archive {address} is a folder: connection {self.conn_id!r} opens none")
        elif not address.startswith(_S3) or not urlsplit(address).netloc:
            raise ConfigError(f"an archive is in a folder or at s3://bucket/prefix, not at {self.address}")
        object.__setattr__(self, "address", address.rstrip("/") or "/")

    @classmethod
    def of(cls, directory: str | os.PathLike[str] | Location) -> Location:
        """What a caller gave as a directory."""
        return directory if isinstance(directory, Location) else cls(os.fspath(directory))

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.address}/{name}", self.conn_id)

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """Its last part."""
        return self.address.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        """What it is in."""
        return Location(self.address.rpartition("/")[0], self.conn_id)

    @property
    def folder(self) -> Path | None:
        """The folder of this machine; None for an address."""
        return None if self.address.startswith(_S3) else Path(self.address)

    @property
    def path(self) -> str:
        """How its file system calls it."""
        return self.address.removeprefix(_S3)

    @property
    def uri(self) -> str:
        """Its address, also of a folder."""
        return self.address if self.folder is None else self.folder.as_uri()

    def options(self) -> dict[str, str] | None:
        """What `deltalake` needs to open it; None for a folder. Raises `ConfigError` for the connection."""
        if self.folder is not None:
            return None
        if self.conn_id is None:
            known = {name: text for name, variables in _ENVIRONMENT.items() if (text := _first_set(variables))}
        else:
            known = _of_connection(self.conn_id)
        if known.get("aws_endpoint_url", "").startswith("http://"):
            known["aws_allow_http"] = "true"
        return {"aws_region": "us-east-1"} | known | _TIMEOUTS

    def files(self) -> fs.FileSystem:
        """The file system that it is in, by the same keys. Raises as `options`."""
        known = self.options()
        if known is None:
            return fs.LocalFileSystem()
        endpoint = urlsplit(known.get("aws_endpoint_url", ""))
        return fs.S3FileSystem(
            access_key=known.get("aws_access_key_id"),
            secret_key=known.get("aws_secret_access_key"),
            session_token=known.get("aws_session_token"),
            region=known["aws_region"],
            scheme=endpoint.scheme or None,
            endpoint_override=endpoint.netloc or None,
            connect_timeout=5,
            request_timeout=30,
        )

    def is_there(self) -> bool:
        """Whether anything is. Raises `StoreFailed`."""
        with self.explained():
            return bool(self.files().get_file_info(self.path).type != fs.FileType.NotFound)

    def names(self) -> list[str]:
        """What is directly in it, in order; nothing where it is not there. Raises `StoreFailed`."""
        with self.explained():
            found = self.files().get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(each.base_name for each in found)

    def write(self, data: bytes) -> None:
        """Make it a file. Raises `StoreFailed`, OSError."""
        with self.explained(), self.files().open_output_stream(self.path) as stream:
            stream.write(data)

    def check_writable(self) -> None:
        """Make a folder if it is not there. Raises `ConfigError` where files cannot be written to it."""
        try:
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=self.folder).close()
            else:
                probe = self / f".writable-{os.urandom(8).hex()}"
                probe.write(b"")
                with self.explained():
                    self.files().delete_file(probe.path)
        except (OSError, StoreFailed) as error:
            raise ConfigError(f"the archive's folder {self} cannot be written to: {error}") from None

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Have what a store answered, which comes as many lines, said in one. Raises `StoreFailed`."""
        try:
            yield
        except OSError as error:
            if self.folder is not None:
                raise
            endpoint = (self.options() or {}).get("aws_endpoint_url")
            reached = f" at {endpoint}" if endpoint else ""
            raise StoreFailed(f"{self}{reached}: {_said(str(error))}") from error


def sync(path: Path) -> None:
    """Bring a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _said(text: str) -> str:
    if answer := _ANSWER.search(text):
        return f"{answer[1]}: {answer[2]}"
    lines = [plain for line in text.splitlines() if (plain := _DRAWN.sub(" ", line).strip())]
    return ": ".join(dict.fromkeys((*lines[:1], *lines[-1:])))


def _first_set(variables: tuple[str, ...]) -> str | None:
    return next((text for name in variables if (text := os.environ.get(name))), None)


def _of_connection(conn_id: str) -> dict[str, str]:
    """What an Airflow connection says. Raises `ConfigError`, which names what is wrong and shows no secret."""
    from .hooks.connection_options import extra_of, look_up

    conn = look_up(conn_id)
    known = {"aws_access_key_id": conn.login, "aws_secret_access_key": conn.password}
    if conn.host:
        raise ConfigError(f"connection {conn_id!r}: say where the store is as endpoint_url in the extra, not as host")
    for name, value in extra_of(conn).items():
        if name not in _EXTRA or not isinstance(value, str):
            raise ConfigError(
                f"connection {conn_id!r}: extra {name!r} is not understood here; known: {', '.join(_EXTRA)}. "
                "For a role, name no connection: the environment or the machine has it then"
            )
        known[_EXTRA[name]] = value
    if not (known["aws_access_key_id"] and known["aws_secret_access_key"]):
        raise ConfigError(f"connection {conn_id!r} has no key: its login is the key's id, its password the secret")
    return {name: text for name, text in known.items() if text}
