"""The schema of the answers with --json, as the page on the command line tells it, and whether an answer keeps it."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
PLAIN = {"text": str, "bool": bool, "int": int}


class Schema:
    """The records and the answers of the page."""

    def __init__(self) -> None:
        (block,) = re.findall(r"^```schema\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        self.lines = dict(re.split(r"  +", line, maxsplit=1) for line in block.splitlines() if line)

    @property
    def answers(self) -> set[str]:
        """The verbs that it has, with the words that tell their answers apart."""
        return {name for name in self.lines if not name[0].isupper()}

    def fields(self, name: str) -> dict[str, str]:
        """The fields of a record or an answer, ``?`` behind the names of those that may be missing."""
        found: dict[str, str] = {}
        for part in self.lines[name].split(", "):
            field, _, kind = part.partition(" ")
            found |= {field: kind} if kind else self.fields(field)
        return found

    def check(self, name: str, value: Any, where: str = "") -> None:
        """Fail unless a value has the fields of a record or an answer, each of its type, and no other."""
        where = where or name
        assert isinstance(value, dict), where
        fields = self.fields(name)
        missing = {field for field in fields if not field.endswith("?")} - value.keys()
        assert not missing, f"{where} has no {missing}"
        for field, each in value.items():
            kind = fields.get(field, fields.get(f"{field}?"))
            assert kind is not None, f"{where}.{field} is not in the schema"
            self.check_type(kind, each, f"{where}.{field}")

    def check_type(self, kind: str, value: Any, where: str) -> None:
        """Fail unless a value has a type."""
        if kind.endswith("?") and value is None:
            return
        kind = kind.removesuffix("?")
        if kind == "any":
            return
        if kind.startswith("["):
            assert isinstance(value, list), where
            for each in value:
                self.check_type(kind[1:-1], each, where)
        elif kind.startswith("{"):
            assert isinstance(value, dict), where
            for each in value.values():
                self.check_type(kind[1:-1], each, where)
        elif kind == "time":
            assert datetime.fromisoformat(value).utcoffset() is not None, f"{where} has no zone"
        elif kind == "number":
            assert type(value) in {int, float}, where
        elif kind in PLAIN:
            assert type(value) is PLAIN[kind], f"{where} is {value!r}"
        else:
            self.check(kind, value, where)
