"""Which tasks a caller asks to see: those in a state that a selector accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.filters import FilterTypes
from airflow_provider_zkmq.engine.core.model.selectors import Selector, as_selector
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.counts import as_state


@dataclass(frozen=True, slots=True)
class Chosen:
    """A state and a selector, None for any, and the queue's filter types, by which a selector is judged."""

    state: State | None
    selector: Selector | None
    types: FilterTypes

    def accepts(self, state: State, filters: Mapping[str, str]) -> bool:
        """Whether a task that is in `state` and has these filters is asked for."""
        in_state = self.state is None or state is self.state
        return in_state and (self.selector is None or self.selector.matches(filters, self.types))


def chosen(context: Context, state: State | str | None, selector: Selector | str | None) -> Procedure[Chosen]:
    """What is asked for. Raises `ConfigError` for an unknown state or selector, or where the queue does not exist."""
    wanted = as_state(state)
    conf = yield from read_conf(context)
    return Chosen(wanted, None if selector is None else as_selector(selector).bind(conf.types), conf.types)
