"""What another kind of queue needs to be one of ours: the rules of names, filters, selectors, durations and records.

The file queues are made of these, and so take and refuse what a queue on ZooKeeper does. Users of queues find what they
need in `airflow_provider_zkmq.engine`; here is besides what reads and writes a queue's own records. Everything else
below `engine` may change its place.
"""

from typing import Final

from .core.model.names import check_name
from .core.model.policy import RetryPolicy, Success
from .core.model.records import Message, NewTasks, encode_data, encode_metadata, keyed
from .core.model.selectors import (
    FilterMethod,
    FilterType,
    FilterTypes,
    Selector,
    as_selector,
    check_types,
    choose,
    decode_types,
    encode_types,
    parse_filters,
)
from .core.model.states import ENDED, FAILED, State, derive_status
from .core.model.values import (
    Duration,
    Moment,
    WaitFor,
    dump,
    load,
    lock_seconds,
    number_of_claims,
    optional_milliseconds,
    optional_seconds,
    optional_whole_number,
    parse_duration,
    seconds,
    wait_event,
    whole_number,
)
from .core.protocol import MAX_REQUEST
from .core.read.configuration import ORDERS, QueueConf
from .core.read.inspect import Task, as_state, checked_columns, checked_ids
from .core.read.nodes import PARTS, Part, checked_parts
from .core.read.scan import Scanned
from .core.read.wait import OnChange, OnProgress, not_reached

#: The largest payload and metadata, or result, of a task in bytes: the rest of a request is for its record.
MAX_PAYLOAD: Final = MAX_REQUEST - 20_000

__all__ = [
    "ENDED",
    "FAILED",
    "MAX_PAYLOAD",
    "ORDERS",
    "PARTS",
    "Duration",
    "FilterMethod",
    "FilterType",
    "FilterTypes",
    "Message",
    "Moment",
    "NewTasks",
    "OnChange",
    "OnProgress",
    "Part",
    "QueueConf",
    "RetryPolicy",
    "Scanned",
    "Selector",
    "State",
    "Success",
    "Task",
    "WaitFor",
    "as_selector",
    "as_state",
    "check_name",
    "check_types",
    "checked_columns",
    "checked_ids",
    "checked_parts",
    "choose",
    "decode_types",
    "derive_status",
    "dump",
    "encode_data",
    "encode_metadata",
    "encode_types",
    "keyed",
    "load",
    "lock_seconds",
    "not_reached",
    "number_of_claims",
    "optional_milliseconds",
    "optional_seconds",
    "optional_whole_number",
    "parse_duration",
    "parse_filters",
    "seconds",
    "wait_event",
    "whole_number",
]
