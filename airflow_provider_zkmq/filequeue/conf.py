"""A queue's configuration: ``<queue>.conf.json``, which may be missing; a person may edit it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord
from airflow_provider_zkmq.engine.model import (
    ORDERS,
    Duration,
    FilterType,
    RetryPolicy,
    check_types,
    decode_types,
    dump,
    encode_types,
    load,
    parse_duration,
    seconds,
)
from airflow_provider_zkmq.filequeue.refusals import ENDLESS, refusal
from airflow_provider_zkmq.textqueue.plain import read_plain, replace_plain

#: How long a claim holds without being extended, where neither it, nor its task, nor the queue says so.
DEFAULT_LOCK: Final = 60.0
#: The longest; its end must fit into a mutex's room.
LONGEST_LOCK: Final = 1e8
#: A configuration is never that long, in bytes.
_MOST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Conf:
    """The declared filters, when failed tasks run again, and how long a claim holds (seconds)."""

    types: Mapping[str, FilterType] = field(default_factory=dict)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    lock: float = DEFAULT_LOCK

    def changed(
        self,
        filters: Mapping[str, FilterType] | None,
        policy: RetryPolicy | None,
        lock: Duration | None,
        order: str | None,
    ) -> Conf:
        """This with what is given. Raises `ConfigError`; both of ZooKeeper's orders are that of the lines."""
        if order is not None and order not in ORDERS:
            msg = f"order {order!r} is unknown: use one of {', '.join(ORDERS)}"
            raise ConfigError(msg)
        return replace(
            self,
            types=self.types if filters is None else check_types(filters),
            policy=policy or self.policy,
            lock=self.lock if lock is None else lock_span("lock", lock),
        )


def lock_span(what: str, value: object) -> float:
    """How long a claim holds: more than 0 seconds. Raises `ConfigError`."""
    span = seconds(what, value)
    if span == 0:
        raise refusal(ENDLESS)
    if span > LONGEST_LOCK:
        msg = f"{what} {value!r} is not allowed: at most {LONGEST_LOCK:.0f} seconds"
        raise ConfigError(msg)
    return span


def read_conf(path: Path) -> Conf:
    """The configuration; the defaults without the file. Raises `CorruptRecord`, `HostileFile` for no plain file."""
    try:
        record = load(str(path), read_plain(path, _MOST))
    except FileNotFoundError:
        return Conf()
    return Conf(
        types=decode_types(str(path), dump(record.get("filters", {}))),
        policy=RetryPolicy.decode(str(path), dump(record.get("policy", {}))),
        lock=_lock(path, record.get("lock", DEFAULT_LOCK)),
    )


def _lock(path: Path, value: object) -> float:
    try:
        return lock_span("lock", parse_duration(value, "lock") if isinstance(value, str) else value)
    except ConfigError as error:
        msg = f"{path}: {error}"
        raise CorruptRecord(msg) from error


def write_conf(path: Path, conf: Conf, mode: int) -> None:
    """Put it in place of what was there, with the mode of the queue's file; who reads sees one or the other."""
    record = {"filters": json.loads(encode_types(conf.types)), "policy": conf.policy.record(), "lock": conf.lock}
    replace_plain(path, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode(), mode)
