"""Runs that have left what lists them and are kept for who reads what ended (`core.writing.letters`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import bucket_start
from airflow_provider_zkmq.engine.core.model.letters import Ended, Letter, LetterName, parse_letter
from airflow_provider_zkmq.engine.core.model.records import TaskState, clip
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.inspect import Task, task_of_letter
from airflow_provider_zkmq.engine.core.reading.nodes import AT_ONCE, list_children, read_nodes, read_stats
from airflow_provider_zkmq.engine.core.reading.trees import WHOLE_AT_ONCE
from airflow_provider_zkmq.engine.errors import CorruptRecord

#: So many znodes without much in them are read in one request: buckets, entries.
BARE_AT_ONCE: Final = 8 * AT_ONCE


class Kept(NamedTuple):
    """A letter by what its name tells, and its place below ``unarchived``."""

    name: LetterName
    place: str


def list_letters(context: Context, after: int = 0) -> Procedure[list[Kept]]:
    """The letters that are kept; those of buckets in which nothing has come or gone after that transaction left out."""
    parent = context.paths.at("unarchived")
    buckets = yield from changed_buckets(parent, after)
    listings = yield from list_children([f"{parent}/{name}" for name in buckets])
    places = [f"{bucket}/{entry}" for bucket, names in zip(buckets, listings, strict=True) for entry in names]
    named = [(parse_letter(place.rpartition("/")[2]), place) for place in places]
    return [Kept(name, place) for name, place in named if name is not None]


def changed_buckets(parent: str, after: int) -> Procedure[dict[str, bool]]:
    """The buckets of an index in which something has come or gone after that transaction; whether each is new since."""
    names = sorted(name for name in (yield Children(parent)) or () if bucket_start(name) is not None)
    nodes = yield from read_nodes([f"{parent}/{name}" for name in names], BARE_AT_ONCE)
    return {
        name: node.stat.czxid > after
        for name, node in zip(names, nodes, strict=True)
        if node is not None and node.stat.pzxid > after
    }


def versions_of(context: Context, letters: Sequence[Kept]) -> Procedure[list[Ended]]:
    """The runs that letters hold. Most names tell; one that ended as its letter was written is read off the Stat."""
    versions = {each.place: each.name.version for each in letters}
    own = [place for place, version in versions.items() if version == 0]
    for place, stat in zip(own, (yield from read_stats([_path(context, place) for place in own])), strict=True):
        versions[place] = 0 if stat is None else stat.czxid
    ended = [Ended(each.name.task_id, versions[each.place], each.place) for each in letters]
    return [each for each in ended if each.version]


def read_letters(context: Context, places: Sequence[str]) -> Procedure[list[Task | None]]:
    """The runs that are kept at these places, None for what is gone.

    What is corrupt is reported, and told with its bytes as data and the reason as error: there is no other place from
    which it could be mended.
    """
    paths = [_path(context, place) for place in places]
    nodes = yield from read_nodes(paths, WHOLE_AT_ONCE)
    return [None if node is None else _task(context, path, node) for path, node in zip(paths, nodes, strict=True)]


def _path(context: Context, place: str) -> str:
    return context.paths.at("unarchived", place)


def _task(context: Context, path: str, node: Node) -> Task:
    letter = _letter(context, path, node)
    try:
        return task_of_letter(path, letter)
    except CorruptRecord as error:
        return task_of_letter(path, _told_of(context, path, node, error))


def _letter(context: Context, path: str, node: Node) -> Letter:
    """The letter; of a corrupt one, which is reported, what can be told."""
    try:
        letter = Letter.decode(path, node.data)
    except CorruptRecord as error:
        return _told_of(context, path, node, error)
    return replace(letter, version=letter.version or node.stat.czxid)


def _told_of(context: Context, path: str, node: Node, error: CorruptRecord) -> Letter:
    context.report(path, str(error))
    name, came = parse_letter(path.rpartition("/")[2]), node.stat.ctime
    state = TaskState(State.DEAD, "", "", error=clip(str(error)))
    version = (name.version if name else 0) or node.stat.czxid
    return Letter(name.task_id if name else "", version, came, came, state, "{}", node.data)
