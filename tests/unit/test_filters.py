"""Filter types, their declarations and a task's values."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine.core.model.filters import (
    Integer,
    OrderedEnum,
    String,
    check_types,
    decode_types,
    encode_types,
    parse_filters,
    parse_type,
)
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

TYPES = {"c": OrderedEnum("low", "high"), "n": Integer(), "s": String()}


def test_declarations_round_trip():
    assert decode_types("p", encode_types(TYPES)) == TYPES


@pytest.mark.parametrize("values", [(), ("a", "a"), ("",), ("a\0",), ("x" * 257,)])
def test_bad_enums_are_refused(values):
    with pytest.raises(ConfigError):
        OrderedEnum(*values)


@pytest.mark.parametrize(
    "given", [{"c": "mid"}, {"n": "x"}, {"n": True}, {"n": 1.5}, {"n": 1 << 63}, {"s": ""}, {"x": "1"}]
)
def test_bad_values_and_undeclared_names_are_refused(given):
    with pytest.raises(ConfigError):
        parse_filters(TYPES, given)


def test_values_are_stored_as_text():
    assert parse_filters(TYPES, {"n": -3, "c": "low", "s": "é"}) == {"n": "-3", "c": "low", "s": "é"}


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"a":1}', b'{"a":{"type":"X"}}', b'{"a/b":{"type":"String"}}'])
def test_malformed_declarations_are_corrupt(data):
    with pytest.raises(CorruptRecord):
        decode_types("p", data)


def test_types_are_read_from_text():
    assert [parse_type(text) for text in ("enum:low,high", "integer", "string")] == list(TYPES.values())
    with pytest.raises(ConfigError):
        parse_type("float")
    with pytest.raises(ConfigError):
        check_types({"a": "string"})
