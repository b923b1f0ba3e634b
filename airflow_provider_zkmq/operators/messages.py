"""Messages as an operator's arguments and rendered templates spell them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_zkmq.engine import ConfigError, Message, RetryPolicy
from airflow_provider_zkmq.hooks.origins import NOTE
from airflow_provider_zkmq.hooks.templating import flag, items_of, kind_of, moment, span

_KEYS: Final = (
    "data",
    "filters",
    "priority",
    "delay",
    "not_before",
    "task_id",
    "metadata",
    "policy",
    "lock",
    "update",
    "requeue",
)
_TIMES: Final = ("delay", "not_before")
_SPANS: Final = ("factor", "min_backoff", "max_backoff")


def spelled(where: str, item: object) -> Mapping[str, Any]:
    """Return a message as a mapping. Raises `ConfigError` naming where it stands."""
    if isinstance(item, Message):
        return {name: value for name in _KEYS if (value := getattr(item, name)) is not None}
    if isinstance(item, Mapping):
        if unknown := sorted(set(map(str, item)) - set(_KEYS)):
            raise ConfigError(f"{where}: unknown {', '.join(unknown)}; known: {', '.join(_KEYS)}")
        if "data" not in item:
            raise ConfigError(f"{where} has no 'data'")
        if item["data"] is None:
            raise ConfigError(f"{where}: data is None: give bytes or text")
        return item
    if item is None:
        raise ConfigError(f"{where} is None: give bytes, text, a Message or a mapping")
    return {"data": item}


def all_spelled(where: str, items: object) -> list[Mapping[str, Any]]:
    """Return a templated list of messages, each as a mapping. Raises `ConfigError` naming which is none."""
    return [spelled(f"{where}[{at}]", item) for at, item in enumerate(items_of(where, items))]


def completed(fields: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with what it leaves out taken from `common`; one that says when it is due, says so alone."""
    own = any(fields.get(name) is not None for name in _TIMES)
    return {name: value for name, value in common.items() if not (own and name in _TIMES)} | dict(fields)


def message(fields: Mapping[str, Any], origin: Mapping[str, object] | None) -> Message:
    """Make a message, with numbers, times and truth values that templates may have rendered to text.

    `origin` is noted under ``metadata["airflow"]``, unless the message has something there. Raises `ConfigError`.
    """
    metadata = dict(_mapping("metadata", fields.get("metadata")))
    if origin is not None:
        metadata.setdefault(NOTE, origin)
    return Message(
        data=fields["data"],
        filters=_mapping("filters", fields.get("filters")) or None,
        priority=_whole("priority", fields.get("priority", 0)),
        delay=span("delay", fields.get("delay")),
        task_id=fields.get("task_id"),
        metadata=metadata or None,
        policy=_policy(fields.get("policy")),
        lock=span("lock", fields.get("lock")),
        update=flag("update", fields.get("update", False)),
        requeue=flag("requeue", fields.get("requeue", False)),
        not_before=moment("not_before", fields.get("not_before")),
    )


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return a mapping, an empty one for nothing. Raises `ConfigError`, which does not show what may be data."""
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping, not {kind_of(value)}")
    return value


def _policy(value: object) -> RetryPolicy | None:
    """Return a policy that may be spelled as a mapping. Raises `ConfigError`."""
    if value is None or isinstance(value, RetryPolicy):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"policy {value!r} is not understood: give a mapping or a RetryPolicy")
    try:
        parts: dict[str, Any] = {name: span(name, part) if name in _SPANS else part for name, part in value.items()}
        return RetryPolicy(**parts)
    except TypeError as error:
        raise ConfigError(f"policy {value!r} is not understood: {error}") from None


def _whole(name: str, value: Any) -> Any:
    """Return the whole number a template rendered to text; anything but text as it is. Raises `ConfigError`."""
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name} {value!r} is no whole number") from None
