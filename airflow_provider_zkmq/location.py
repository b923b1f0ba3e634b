"""Where an archive is: a folder, or an address in S3 or in a store that speaks as S3 does.

A location has no secrets, so that Spark may write it into plans and logs. Keys are looked up where they are used: in
the Airflow connection that it names, else in the environment, as programs for S3 do (``AWS_ACCESS_KEY_ID`` and so on).
Executors import this: it needs pyarrow, what `py_files` ships and, for a connection, Airflow.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
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
_TIMEOUTS: Final = {"retry_timeout": "10s", "connect_timeout": "5s", "timeout": "15s"}
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:\d+)?/?|https?://\[[0-9A-Fa-f:.]+\](:\d+)?/?")
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]+")
#: `deltalake` takes these for parts of an address, and does not find its own log then.
_UNUSABLE: Final = re.compile(r"[?#%\\]")
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
        address = self.address
        scheme, found, rest = address.partition("://")
        if found or not address or re.match("s3a?:/", address):  # a path that began so is an address that was cut
            bucket, _, prefix = rest.partition("/")
            if scheme not in {"s3", "s3a"} or not _BUCKET.fullmatch(bucket):  # it is not shown: it may hold a key
                raise ConfigError("an archive is in a folder or at s3://bucket/prefix, and at no other address")
            address = "/".join((f"{_S3}{bucket}", *filter(None, prefix.split("/"))))
        else:
            address = str(Path(address).expanduser().absolute())
            if self.conn_id is not None:
                raise ConfigError(f"the archive {address} is a folder: connection {self.conn_id!r} opens none")
        object.__setattr__(self, "address", address)

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
        """What `deltalake` needs to open it; None for a folder. Raises `ConfigError` for keys that are no use."""
        if self.folder is not None:
            return None
        known = {name: text for name, variables in _ENVIRONMENT.items() if (text := _first_set(variables))}
        where = "the environment"
        if self.conn_id is not None:
            ambient, known, where = known, _of_connection(self.conn_id), f"connection {self.conn_id!r}"
            for name in ("aws_access_key_id", "aws_session_token", "aws_endpoint_url"):
                if name in ambient and name not in known:  # `deltalake` would mix them
                    raise ConfigError(
                        f"{where} does not say {name}, and the environment does: say it there or unset it"
                    )
        if ("aws_access_key_id" in known) != ("aws_secret_access_key" in known) or (
            "aws_session_token" in known and "aws_access_key_id" not in known
        ):
            raise ConfigError(f"{where} has a part of a key to {self}: give both its id and its secret")
        endpoint = known.get("aws_endpoint_url")
        if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):  # it may hold a password
            raise ConfigError(f"the endpoint that {where} gives must be http://host:port or https://host:port, no more")
        if endpoint is not None and endpoint.startswith("http://"):
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

    def folders(self) -> list[str]:
        """The folders that are directly in it, in order; none where it is not there. Raises `StoreFailed`."""
        with self.explained():
            found = self.files().get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(each.base_name for each in found if each.type == fs.FileType.Directory)

    def write(self, data: bytes) -> None:
        """Make it a file. Raises `StoreFailed`, OSError."""
        with self.explained(), self.files().open_output_stream(self.path) as stream:
            stream.write(data)

    def check_writable(self) -> None:
        """Make a folder if it is not there. Raises `ConfigError` where tables cannot be written to it."""
        self.check_usable()
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
            raise ConfigError(f"the archive {self} cannot be written to: {error}") from None

    def check_usable(self) -> None:
        """Raise `ConfigError` where no table can be."""
        if _UNUSABLE.search(self.address):
            raise ConfigError(f"{self}: Delta tables cannot be kept under a path with ?, #, % or \\ in it")

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

    conn, where = look_up(conn_id), f"connection {conn_id!r}"
    if conn.conn_type != "aws":
        raise ConfigError(f"{where} is of type {conn.conn_type!r}: the keys to S3 are in one of type 'aws'")
    if conn.host:
        raise ConfigError(f"{where}: say where the store is as endpoint_url in the extra, not as host")
    known = {"aws_access_key_id": conn.login, "aws_secret_access_key": conn.password}
    extra = extra_of(conn)
    for name, value in extra.items() if isinstance(extra, Mapping) else [("extra", extra)]:
        if value in (None, ""):
            continue
        if name not in _EXTRA or not isinstance(value, str):
            raise ConfigError(
                f"{where}: its extra may have {', '.join(_EXTRA)} as texts, and something else is there. "
                "For a role, name no connection: the environment or the machine has it then"
            )
        known[_EXTRA[name]] = value
    return {name: text for name, text in known.items() if text}
