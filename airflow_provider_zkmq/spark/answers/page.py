"""A report as one HTML page that needs nothing besides itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import count
from typing import Final

from airflow_provider_zkmq.spark.answers.plots import svg
from airflow_provider_zkmq.spark.answers.style import STYLE
from airflow_provider_zkmq.spark.answers.tables import Column, Row, Section, Table
from airflow_provider_zkmq.spark.answers.words import printable, spell

_NUMBERS: Final = frozenset({"count", "span", "rate", "share", "moment", "real"})
#: What an on-call person should see at once, by the column's name.
_MARKED: Final = {
    "nobody serves it": "bad",
    "overloaded": "bad",
    "too few": "bad",
    "too few at the peak": "warn",
    "slower than modelled": "warn",
    "enough": "good",
    "more than enough": "good",
}
_MEANING: Final = "What this means, and what it does not"
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, lines: Sequence[str], sections: Sequence[Section], findings: Sequence[tuple[str, str]]) -> str:
    """The whole page. `findings`: what to know first, each with how it is: good, note, warn, bad."""
    numbers = count(1)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<header><h1>{_text(title)}</h1>",
            *(f"<p>{_text(line)}</p>" for line in lines),
            *_contents(sections),
            "</header>\n<main>",
            *_findings(findings),
            *(part for section in sections for part in _section(section, numbers)),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _text(value: str) -> str:
    return escape(printable(value))


def _contents(sections: Sequence[Section]) -> Iterator[str]:
    links = (f'<a href="#{section.name}">{_text(section.title)}</a>' for section in sections)
    yield f'<nav aria-label="Sections">{" ".join(links)}</nav>'


def _findings(findings: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield '<section id="findings" aria-label="What to know first"><ul class="findings">'
    words = {"bad": "Act", "warn": "Look", "good": "Fine", "note": "Note"}
    for level, text in findings:
        yield f'<li class="{level}"><span class="mark">{words[level]}</span> <span>{_text(text)}</span></li>'
    yield "</ul></section>"


def _section(section: Section, numbers: Iterator[int]) -> Iterator[str]:
    yield f'<section id="{section.name}"><h2>{_text(section.title)}</h2>'
    yield from (f'<p class="said">{_text(text)}</p>' for text in section.said)
    for plot in section.plots:
        yield f"<figure>{svg(plot, next(numbers))}<figcaption>{_text(plot.title)}</figcaption></figure>"
    for table in section.tables:
        yield from _table(table)
    if section.notes:
        notes = "".join(f"<li>{_text(note)}</li>" for note in section.notes)
        yield f'<details class="notes"><summary>{_MEANING}</summary><ul>{notes}</ul></details>'
    yield "</section>"


def _table(table: Table) -> Iterator[str]:
    if not table.rows:
        yield f'<p class="empty">{_text(table.empty)}</p>'
        return
    heads = "".join(f'<th scope="col"{_kind(column)}>{_text(column.title)}</th>' for column in table.columns)
    rows = (f"<tr>{''.join(_cell(column, row) for column in table.columns)}</tr>" for row in table.rows)
    inside = f"<thead><tr>{heads}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>"
    if table.folded:
        yield f"<details><summary>{_text(table.caption)} ({len(table.rows):,} rows)</summary>"
    label = _text(table.caption)
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
    yield f"<table><caption>{label}</caption>{inside}</table></div>"
    if table.folded:
        yield "</details>"


def _kind(column: Column) -> str:
    kind = "number" if column.sort in _NUMBERS else column.sort
    return f' class="{kind}"'


def _cell(column: Column, row: Row) -> str:
    value = row[column.name]
    text = _text(spell(column.sort, value))
    if column.name == "verdict":
        text = f'<span class="badge {_MARKED.get(value, "")}">{text}</span>'
    return f"<td{_kind(column)}>{text}</td>"
