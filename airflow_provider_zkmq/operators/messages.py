"""Messages as an operator's arguments and rendered templates spell them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.engine import ConfigError, Message, RetryPolicy
from airflow_provider_zkmq.hooks.templating import flag, items_of

if TYPE_CHECKING:
    from airflow.sdk import Context

_KEYS: Final = ("data", "filters", "priority", "delay", "task_id", "metadata", "policy", "lock", "update", "requeue")


def spelled(where: str, item: object) -> Mapping[str, Any]:
    """Return a message as a mapping. Raises `ConfigError` naming where it stands."""
    if isinstance(item, Message):
        return {name: value for name in _KEYS if (value := getattr(item, name)) is not None}
    if isinstance(item, Mapping):
        if unknown := sorted(set(map(str, item)) - set(_KEYS)):
            raise ConfigError(f"{where}: unknown {', '.join(unknown)}; known: {', '.join(_KEYS)}")
        if "data" not in item:
            raise ConfigError(f"{where} has no 'data'")
        return item
    return {"data": item}


def all_spelled(where: str, items: object) -> list[Mapping[str, Any]]:
    """Return a templated list of messages, each as a mapping. Raises `ConfigError` naming which is none."""
    return [spelled(f"{where}[{at}]", item) for at, item in enumerate(items_of(where, items))]


def message(fields: Mapping[str, Any], origin: Mapping[str, object] | None) -> Message:
    """Make a message, with numbers and truth values that templates may have rendered to text.

    `origin` is noted under ``metadata["airflow"]``, unless the message has something there. Raises `ConfigError`.
    """
    metadata = dict(fields.get("metadata") or {})
    if origin is not None:
        metadata.setdefault("airflow", origin)
    return Message(
        data=fields["data"],
        filters=fields.get("filters"),
        priority=_number("priority", fields.get("priority", 0), int),
        delay=_number("delay", fields.get("delay"), float),
        task_id=fields.get("task_id"),
        metadata=metadata or None,
        policy=_policy(fields.get("policy")),
        lock=_number("lock", fields.get("lock"), float),
        update=flag("update", fields.get("update", False)),
        requeue=flag("requeue", fields.get("requeue", False)),
    )


def _policy(value: object) -> RetryPolicy | None:
    """Return a policy that may be spelled as a mapping. Raises `ConfigError`."""
    if value is None or isinstance(value, RetryPolicy):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"policy {value!r} is not understood: give a mapping or a RetryPolicy")
    try:
        return RetryPolicy(**value)
    except TypeError as error:
        raise ConfigError(f"policy {value!r} is not understood: {error}") from None


def _number(name: str, value: Any, kind: type[int | float]) -> Any:
    """Return the number a template rendered to text; anything but text as it is. Raises `ConfigError`."""
    if not isinstance(value, str):
        return value
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} {value!r} is no number") from None


def origin_of(context: Context) -> dict[str, object]:
    """Return which task instance enqueues."""
    instance: object = context["ti"]
    return {name: getattr(instance, name, None) for name in ("dag_id", "run_id", "task_id", "map_index", "try_number")}
