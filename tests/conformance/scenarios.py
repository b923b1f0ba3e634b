"""Scenarios of operations on a tree, to be carried out alike by every server that calls itself ZooKeeper."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.zk_operations import (
    MAX_REQUEST,
    Check,
    Children,
    Create,
    CreateContainer,
    Delete,
    Exists,
    Get,
    GetMany,
    Multi,
    Pipeline,
    Post,
    SetData,
    Sync,
    WriteOp,
)
from tests.conformance.world import World, scenario


def _bad_paths(w: World) -> list[str]:
    odd = ["\x00", "\x01", "\x1f", " ", "\x7f", "\x80", "\x9f", "\xa0", "ü", "日本", "\ud7ff", "\ue000", "\uf8ff",
           "\uf900", "\uffef", "\ufff0", "\uffff", "\U0001f600", "\n", "a\nb", "%2F", "\\", "~", ":", ";",
           "*"]  # fmt: skip
    whole = ["relative", "relative/x", "/", "//", "/.", "/..", "./x"]
    ours = ["//x", "/x/", "/x//", "//", "/", "/.", "/..", "/./x", "/../x", "/x/.", "/x/..", "/...", "/.x", "/x.",
            "/a..b", "/x/y/../z", "/x\x00"]  # fmt: skip
    return [*whole, *(w.base + end for end in ours), *(w.at(name) for name in odd)]


@scenario
def paths_in_writes(w: World) -> None:
    """Of several refusals the first counts: a bad path does not hide behind another."""
    for path in _bad_paths(w):
        w.a.play(Check(path), SetData(path, b"x", 77), Delete(path, 77))
    for path in _bad_paths(w):
        w.a.play(Create(path))
    w.a(Children(w.base))
    orphan = Create(w.at("no", "parent"))
    w.a.play((Create(w.at("y")), Create(w.at("y/")), orphan), (orphan, Create(w.at("y/"))), Children(w.base))


@scenario
def paths_in_a_container(w: World) -> None:
    w.a.play(*(CreateContainer(path) for path in _bad_paths(w) if path != "/"), Children(w.base))


@scenario
def paths_in_reads(w: World) -> None:
    w.a.do(Create(w.at("x")))
    for path in _bad_paths(w):
        if path != "/":  # its children are what everybody made
            w.a.play(Get(path), Exists(path), Children(path), GetMany((w.at("x"), path)))


@scenario
def create_look_delete(w: World) -> None:
    a, x = w.a, w.at("x")
    a.play(Get(x), Exists(x), Children(x))
    a.play(Create(x, b"one"), Get(x), Exists(x), Children(x))
    a.play(Create(x, b"two"), Create(w.at("no", "parent")))
    a.play(Delete(x, 1), Delete(x, 0), Delete(x), Get(x))
    a.play(Create(x), Get(x), Delete(x, -1), Children(w.base))


@scenario
def versions(w: World) -> None:
    a, x = w.a, w.at("x")
    a.play(SetData(x, b"none"), Check(x), Check(x, 0), Create(x, b"0"))
    for version in (0, 0, 1, -1, 2, 3, 4, -2, 99):
        a.play(Check(x, version), SetData(x, f"after {version}".encode(), version), Get(x))
    a.play((SetData(x, b"same"), SetData(x, b"same")), Get(x))
    a.play(SetData(x, b""), Get(x), Delete(x, 1), Delete(x, -2), Exists(x))


@scenario
def a_parent_s_stat(w: World) -> None:
    """Children change the count, and nothing else of what is looked at."""
    a, x = w.a, w.at("x")
    a.do(Create(x))
    for op in (Create(w.at("x", "1")), Create(w.at("x", "2")), SetData(w.at("x", "1"), b"d"), Delete(w.at("x", "1"))):
        a.play(op, Exists(x))
    a.play(Delete(x), (Delete(w.at("x", "2")), Delete(x)), Exists(x))


@scenario
def time_and_number_of_a_write(w: World) -> None:
    """An outcome's time and zxid are those of what it set; a transaction that sets nothing tells none."""
    a, x = w.a, w.at("x")
    a.play(Create(x), (Create(w.at("y")), Check(x), Delete(w.at("y"))))
    outcome = a.do(Create(w.at("z")), SetData(x, b"d"), SetData(w.at("z"), b"e"))
    first, second = a(Get(x)), a(Get(w.at("z")))
    w.note((outcome.time, outcome.zxid) == (first.stat.mtime, first.stat.mzxid))
    w.note((outcome.time, outcome.zxid) == (second.stat.ctime, second.stat.czxid))
    w.note(second.stat.version)


def _refusals(w: World) -> dict[str, WriteOp]:
    return {
        "no node": SetData(w.at("none"), b""),
        "no node to check": Check(w.at("none")),
        "no node to delete": Delete(w.at("none")),
        "no parent": Create(w.at("none", "x")),
        "exists": Create(w.at("old")),
        "version": SetData(w.at("old"), b"new", 5),
        "version to check": Check(w.at("old"), 5),
        "version to delete": Delete(w.at("leaf"), 5),
        "not empty": Delete(w.at("old")),
        "bad path": Create(w.at("bad/")),
        "under an ephemeral": Create(w.at("ephemeral", "x")),
    }


@scenario
def a_refusal_at_each_position(w: World) -> None:
    """Which operation was refused and why; and nothing of the transaction happened."""
    a, watches = w.a, w.b
    a.do(Create(w.at("old"), b"old"), Create(w.at("old", "child")), Create(w.at("leaf"), b"leaf"))
    a.do(Create(w.at("ephemeral"), ephemeral=True), Create(w.at("doomed")))
    good = [
        Create(w.at("new")), SetData(w.at("old"), b"new"), Delete(w.at("doomed")), Create(w.at("new", "child")),
        Create(w.at("short"), ephemeral=True),
    ]  # fmt: skip
    for path in ("old", "leaf", "doomed", "new"):
        watches(Exists(w.at(path), watches.watch(f"{path} changed")))
    watches(Children(w.base, watches.watch("children changed")))
    for refused in _refusals(w).values():
        for position in range(len(good) + 1):
            a.do(*good[:position], refused, *good[position:])
    watches.play(*(Get(w.at(name)) for name in ("old", "leaf", "doomed", "new", "short")))
    watches.play(Children(w.base), Children(w.at("old")))
    a.do(*good)
    watches(Children(w.base))


@scenario
def two_refusals_in_one_transaction(w: World) -> None:
    w.a.do(Create(w.at("old")))
    refusals = [op for name, op in _refusals(w).items() if name not in {"under an ephemeral", "not empty"}]
    w.a.play(*((first, second) for first in refusals for second in refusals))


@scenario
def one_path_twice_in_a_transaction(w: World) -> None:
    a, x, y, z, c, d = w.a, w.at("x"), w.at("y"), w.at("z"), w.at("x", "c"), w.at("x", "c", "d")
    runs: list[tuple[WriteOp, ...]] = [
        (Create(x, b"1"), Create(x, b"2")),
        (Create(x, b"1"), SetData(x, b"2", 0), SetData(x, b"3", 1), Check(x, 2)),
        (SetData(x, b"4", 2), SetData(x, b"5", 2)),
        (SetData(x, b"4", 2), Check(x, 2)),
        (Check(x, 2), SetData(x, b"4", 2)),
        (Create(c), Delete(x)),
        (Create(c), Delete(c), Delete(x)),
        (Create(x), Create(c), Create(d, ephemeral=True)),
        (Delete(d), Delete(c), Create(c, b"new")),
        (Delete(c), Delete(c)),
        (Delete(c), SetData(c, b"")),
        (Delete(c), Create(c, ephemeral=True), Create(d)),
        (Delete(c), Delete(x), Create(x, b"again"), Create(c, b"too")),
        (Create(y), Delete(y)),
        (Create(y, ephemeral=True), Delete(y), Create(y)),
        (Create(z, ephemeral=True), SetData(z, b"z"), Delete(z, 1)),
    ]
    for ops in runs:
        a.play(ops, Get(x), Get(c), Get(y), Get(z), Children(w.base))
    a.do()
    a.end()
    w.b(Get(y))


@scenario
def transactions_that_nobody_waits_for(w: World) -> None:
    """Each comes before what is sent later, and tells of a refusal only, before the later reply."""
    a, b, x = w.a, w.b, w.at("x")
    a.play(Post(Multi((Create(x, b"0"),)), a.watch("made").fire), Get(x, a.watch("own")))
    b.play(Sync("/"), Get(x, b.watch("other")))
    for version in (0, 0, 1):
        a(Post(Multi((Check(x), SetData(x, b"n", version))), a.watch(f"set at {version}").fire))
    a.play(SetData(x, b"last", 2), Get(x))
    b.play(Sync("/"), Get(x))
    a(Post(Multi((Create(w.at("no", "parent")), Create(w.at("y")))), a.watch("without a parent").fire))
    a(Children(w.base))


@scenario
def several_operations_in_one_pipeline(w: World) -> None:
    """Who has read the new state was told before; in one pipeline, too."""
    a, b, x = w.a, w.b, w.at("x")
    a.do(Create(x, b"0"))
    b(Get(x, b.watch("first")))
    a.do(SetData(x, b"1"))
    b(Get(x, b.watch("second")))
    b(Pipeline((Get(x), Multi((SetData(x, b"2"),)), Get(x, b.watch("third")), Multi((SetData(x, b"3"),)), Exists(x))))
    b(Pipeline((Get(w.at("none")), Children(w.base, b.watch("children")), GetMany((x, w.at("none"), x)))))
    b(Pipeline((Multi((Create(w.at("y")),)), Multi((Create(w.at("y")),)), CreateContainer(w.at("y")))))
    b(Children(w.base))


@scenario
def many_reads_in_one(w: World) -> None:
    a = w.a
    a.do(Create(w.at("1"), b"1"), Create(w.at("2"), b""), Create(w.at("e"), b"e", ephemeral=True))
    a.play(GetMany((w.at("1"), w.at("none"), w.at("2"), w.at("1"), w.at("e"))), GetMany((w.at("none"),)))
    a(GetMany(tuple(w.at(str(number)) for number in range(300))))


@scenario
def names_of_children(w: World) -> None:
    for names in (["p0000;*", "p0000;kind=%2F", "a~b", "…", "x y", "0" * 200], [f"n{number}" for number in range(300)]):
        w.a.play(tuple(Create(w.at(name)) for name in names), Children(w.base))


@scenario
def sizes(w: World) -> None:
    """What is too large is refused before it is sent; what is not, is taken and read back."""
    a, x = w.a, w.at("x")
    a.play(Create(x, b"d" * (MAX_REQUEST - 1_000)), Get(x), SetData(x, b"d" * MAX_REQUEST))
    a.do(Create(w.at("y")), SetData(x, b"d" * (MAX_REQUEST - 100)))
    a.do(*(SetData(x, b"d" * 300_000) for _ in range(4)))
    a.play(Get(x), Exists(w.at("y")), SetData(x, b"d" * (MAX_REQUEST - 1_000)), GetMany((x, x)))
    a.do(*(Create(w.at(f"n{number}"), b"d" * 100) for number in range(1_000)))
    a(Exists(w.base))
