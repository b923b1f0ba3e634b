"""Messages for tasks that are to be new, validated; what is refused is told by its position and its part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.filters import parse_filters
from airflow_provider_zkmq.engine.core.model.lanes import check_priority
from airflow_provider_zkmq.engine.core.model.messages import Message, encode_data, encode_metadata
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.writing.draft import Tree, prepare
from airflow_provider_zkmq.engine.errors import BadMessage, ConfigError, TaskTooLarge


def prepare_new(context: Context, conf: Conf, position: int, message: Message, batch: str | None) -> Tree:
    """A message, validated. Raises `BadMessage`, which says where in the call and in the message the trouble is."""
    try:
        if isinstance(message, Message):
            _refuse_reuse(message)
        tree = prepare(context, conf, message, batch)
    except (ConfigError, TaskTooLarge) as error:
        raise BadMessage(str(error), position=position, part=_part(conf, message)) from error
    tree.only_new = True
    return tree


def _refuse_reuse(message: Message) -> None:
    if message.task_id is None:
        msg = "task id None is not allowed: only by an id of its own can be told whether a task is there"
        raise ConfigError(msg)
    if message.update or message.requeue:
        msg = "update and requeue are about tasks that are there; here those are left alone"
        raise ConfigError(msg)


#: The parts of a message, each with what refuses it.
_PARTS: Final[dict[str, Callable[[Conf, Message], object]]] = {
    "task_id": lambda _, message: check_name("task id", message.task_id),
    "data": lambda _, message: encode_data("data", message.data),
    "filters": lambda conf, message: parse_filters(conf.types, message.filters),
    "metadata": lambda _, message: encode_metadata(message.metadata),
    "priority": lambda _, message: check_priority(message.priority),
    "delay": lambda _, message: message.times(),
}


def _part(conf: Conf, message: object) -> str | None:
    """The part of a message that is refused; None where it is something else."""
    if not isinstance(message, Message):
        return None
    for name, check in _PARTS.items():
        try:
            check(conf, message)
        except ConfigError:
            return name
    return None
