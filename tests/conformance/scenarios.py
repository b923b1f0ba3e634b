"""Scenarios of single operations, each to be carried out alike by every server that calls itself ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_zkmq.engine.core.protocol.ops import (
    Children,
    CreateContainer,
    Exists,
    Get,
    GetMany,
    Pipeline,
    Post,
    Sync,
    Watch,
)
from airflow_provider_zkmq.engine.core.protocol.writes import (
    MAX_REQUEST,
    Check,
    Create,
    Delete,
    Multi,
    SetData,
    WriteOp,
)
from tests.conformance.world import Actor, World

Scenario = Callable[[World], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def _bad_paths(w: World) -> list[str]:
    odd = ["\x00", "\x01", "\x1f", " ", "\x7f", "\x80", "\x9f", "\xa0", "ü", "日本", "\ud7ff", "\ue000", "\uf8ff",
           "\uf900", "\uffef", "\ufff0", "\uffff", "\U0001f600", "\n", "a\nb", "%2F", "\\", "~", ":", ";",
           "*"]  # fmt: skip
    whole = ["relative", "relative/x", "/", "//", "/.", "/..", "./x"]
    ours = ["//x", "/x/", "/x//", "//", "/", "/.", "/..", "/./x", "/../x", "/x/.", "/x/..", "/...", "/.x", "/x.",
            "/a..b", "/x/y/../z", "/x\x00"]  # fmt: skip
    return [*whole, *(w.base + end for end in ours), *(w.at(name) for name in odd)]


@scenario
def paths_in_a_create(w: World) -> None:
    for path in _bad_paths(w):
        w.a.do(Create(path))
    w.a(Children(w.base))


@scenario
def paths_in_the_other_writes(w: World) -> None:
    for path in _bad_paths(w):
        w.a.do(Check(path))
        w.a.do(SetData(path, b"x", 77))
        w.a.do(Delete(path, 77))


@scenario
def paths_in_a_container(w: World) -> None:
    for path in _bad_paths(w):
        if path != "/":
            w.a(CreateContainer(path))
    w.a(Children(w.base))


@scenario
def paths_in_reads(w: World) -> None:
    w.a.do(Create(w.at("x")))
    for path in _bad_paths(w):
        if path == "/":  # its children are what everybody made
            continue
        w.a(Get(path))
        w.a(Exists(path))
        w.a(Children(path))
        w.a(GetMany((w.at("x"), path)))


@scenario
def a_bad_path_does_not_hide_behind_another(w: World) -> None:
    """Of several refusals the first counts."""
    w.a.do(Create(w.at("x")), Create(w.at("x/")), Create(w.at("no", "parent")))
    w.a.do(Create(w.at("no", "parent")), Create(w.at("x/")))
    w.a(Children(w.base))


@scenario
def create_look_delete(w: World) -> None:
    a, x = w.a, w.at("x")
    a(Get(x))
    a(Exists(x))
    a(Children(x))
    a.do(Create(x, b"one"))
    a(Get(x))
    a(Exists(x))
    a(Children(x))
    a.do(Create(x, b"two"))
    a.do(Create(w.at("no", "parent")))
    a.do(Delete(x, 1))
    a.do(Delete(x, 0))
    a.do(Delete(x))
    a(Get(x))
    a.do(Create(x))
    a(Get(x))
    a.do(Delete(x, -1))
    a(Children(w.base))


@scenario
def versions(w: World) -> None:
    a, x = w.a, w.at("x")
    a.do(SetData(x, b"none"))
    a.do(Check(x))
    a.do(Check(x, 0))
    a.do(Create(x, b"0"))
    for version in (0, 0, 1, -1, 2, 3, 4, -2, 99):
        a.do(Check(x, version))
        a.do(SetData(x, f"after {version}".encode(), version))
        a(Get(x))
    a.do(SetData(x, b"same"), SetData(x, b"same"))
    a(Get(x))
    a.do(SetData(x, b""))
    a(Get(x))
    a.do(Delete(x, 1))
    a.do(Delete(x, -2))
    a(Exists(x))


@scenario
def a_parent_s_stat(w: World) -> None:
    """Children change the count, and nothing else of what is looked at."""
    a, x = w.a, w.at("x")
    a.do(Create(x))
    for op in (Create(w.at("x", "1")), Create(w.at("x", "2")), SetData(w.at("x", "1"), b"d"), Delete(w.at("x", "1"))):
        a.do(op)
        a(Exists(x))
    a.do(Delete(x))
    a.do(Delete(w.at("x", "2")), Delete(x))
    a(Exists(x))


@scenario
def time_and_number_of_a_write(w: World) -> None:
    """An outcome's time and zxid are those of what it set; a transaction that sets nothing tells none."""
    a, x = w.a, w.at("x")
    a.do(Create(x))
    a.do(Create(w.at("y")), Check(x), Delete(w.at("y")))
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
    a = w.a
    a.do(Create(w.at("old"), b"old"), Create(w.at("old", "child")), Create(w.at("leaf"), b"leaf"))
    a.do(Create(w.at("ephemeral"), ephemeral=True), Create(w.at("doomed")))
    good = [
        Create(w.at("new")), SetData(w.at("old"), b"new"), Delete(w.at("doomed")), Create(w.at("new", "child")),
        Create(w.at("short"), ephemeral=True),
    ]  # fmt: skip
    watches = w.b
    for path in ("old", "leaf", "doomed", "new"):
        watches(Exists(w.at(path), watches.watch(f"{path} changed")))
    watches(Children(w.base, watches.watch("children changed")))
    for refused in _refusals(w).values():
        for position in range(len(good) + 1):
            a.do(*good[:position], refused, *good[position:])
    for name in ("old", "leaf", "doomed", "new", "short"):
        watches(Get(w.at(name)))
    watches(Children(w.base))
    watches(Children(w.at("old")))
    a.do(*good)
    watches(Children(w.base))


@scenario
def two_refusals_in_one_transaction(w: World) -> None:
    w.a.do(Create(w.at("old")))
    refusals = [op for name, op in _refusals(w).items() if name not in {"under an ephemeral", "not empty"}]
    for first in refusals:
        for second in refusals:
            w.a.do(first, second)


@scenario
def one_path_twice_in_a_transaction(w: World) -> None:
    a = w.a
    x = w.at("x")
    runs: list[tuple[WriteOp, ...]] = [
        (Create(x, b"1"), Create(x, b"2")),
        (Create(x, b"1"), SetData(x, b"2", 0), SetData(x, b"3", 1), Check(x, 2)),
        (SetData(x, b"4", 2), SetData(x, b"5", 2)),
        (SetData(x, b"4", 2), Check(x, 2)),
        (Check(x, 2), SetData(x, b"4", 2)),
        (Create(w.at("x", "c")), Delete(x)),
        (Create(w.at("x", "c")), Delete(w.at("x", "c")), Delete(x)),
        (Create(x), Create(w.at("x", "c")), Create(w.at("x", "c", "d"), ephemeral=True)),
        (Delete(w.at("x", "c", "d")), Delete(w.at("x", "c")), Create(w.at("x", "c"), b"new")),
        (Delete(w.at("x", "c")), Delete(w.at("x", "c"))),
        (Delete(w.at("x", "c")), SetData(w.at("x", "c"), b"")),
        (Delete(w.at("x", "c")), Create(w.at("x", "c"), ephemeral=True), Create(w.at("x", "c", "d"))),
        (Delete(w.at("x", "c")), Delete(x), Create(x, b"again"), Create(w.at("x", "c"), b"too")),
        (Create(w.at("y")), Delete(w.at("y"))),
        (Create(w.at("y"), ephemeral=True), Delete(w.at("y")), Create(w.at("y"))),
        (Create(w.at("z"), ephemeral=True), SetData(w.at("z"), b"z"), Delete(w.at("z"), 1)),
    ]
    for ops in runs:
        a.do(*ops)
        for path in (x, w.at("x", "c"), w.at("y"), w.at("z")):
            a(Get(path))
        a(Children(w.base))
    a.do()
    a.end()
    w.b(Get(w.at("y")))


@scenario
def ephemerals(w: World) -> None:
    a, b, x = w.a, w.b, w.at("x")
    a.do(Create(x, b"mine", ephemeral=True))
    a(Get(x))
    b(Get(x))
    b.do(Create(w.at("x", "child")))
    a.do(Create(w.at("x", "child"), ephemeral=True))
    a.do(Create(w.at("e"), ephemeral=True), Create(w.at("e", "child")))
    a(CreateContainer(w.at("x", "child")))
    b.do(SetData(x, b"yours", 0))
    b.do(Create(x, ephemeral=True))
    a(Get(x))
    b.do(Delete(x))
    a(Get(x))
    b.do(Create(x, ephemeral=True))
    a(Get(x))


@scenario
def the_end_of_a_session(w: World) -> None:
    """All its ephemerals go at one moment, and those that watch any of them are told; what others made stays."""
    a, b = w.a, w.b
    names = [w.at("p", "1"), w.at("p", "2"), w.at("q", "1")]
    a.do(Create(w.at("p")), Create(w.at("q")), Create(w.at("r")))
    a.do(*(Create(name, b"d", ephemeral=True) for name in names))
    b.do(Create(w.at("p", "b"), ephemeral=True))
    for name in (*names, w.at("p"), w.at("q"), w.at("r"), w.at("p", "b")):
        b(Exists(name, b.watch(f"data of {name}")))
    for name in (*names, w.at("p"), w.at("q"), w.at("r")):
        b(Children(name, b.watch(f"children of {name}")))
    b(Get(names[0], b.watch("data again")))
    a.end()
    b(Children(w.at("p")), any_order=True)
    b(Children(w.at("q")))
    b(Children(w.at("r")))
    b(Get(w.at("p", "b")))
    b(Exists(w.at("p")))
    for name in names:
        b(Exists(name))


@scenario
def what_a_session_no_longer_owns_outlives_it(w: World) -> None:
    """An ephemeral that was deleted, its name taken by something else: the end of its session does not touch that."""
    a, b = w.a, w.b
    names = [w.at(name) for name in ("persistent", "yours", "container", "gone", "mine again")]
    for name in names:
        a.do(Create(name, ephemeral=True))
        b.do(Delete(name))
    b.do(Create(names[0]), Create(names[1], ephemeral=True))
    b(CreateContainer(names[2]))
    a.do(Create(names[4], ephemeral=True))
    a.do(Create(w.at("refused"), ephemeral=True), Create(names[0]))
    b.do(Create(w.at("refused")))
    a.end()
    for name in (*names, w.at("refused")):
        b(Exists(name))


@scenario
def containers(w: World) -> None:
    """Reaped once emptied; not before they had a child, nor while they have one."""
    a, b = w.a, w.b
    w.reap()  # the next time is a second away
    for name in ("unused", "used", "full", "refilled", "outer", "ephemeral"):
        a(CreateContainer(w.at(name)))
    a(CreateContainer(w.at("used")))
    a(CreateContainer(w.at("no", "parent")))
    a.do(Create(w.at("used")))
    a(Get(w.at("used")))
    a.do(SetData(w.at("used"), b"data", 0))
    a(Get(w.at("used")))
    a.do(Create(w.at("used", "1")), Create(w.at("full", "1")), Create(w.at("refilled", "1")))
    a(CreateContainer(w.at("outer", "inner")))
    a.do(Create(w.at("outer", "inner", "1")))
    a.do(Delete(w.at("used")))
    a.do(Delete(w.at("used", "1")), Delete(w.at("refilled", "1")))
    a.do(Create(w.at("refilled", "2")), Delete(w.at("outer", "inner", "1")))
    c = w.actor("c")
    c.do(Create(w.at("ephemeral", "1"), ephemeral=True))
    c.end()
    a.do(Create(w.at("plain")), Create(w.at("plain", "1")))
    a.do(Delete(w.at("plain", "1")))
    a(CreateContainer(w.at("deleted")))
    a.do(Delete(w.at("deleted")))
    b(Get(w.at("used"), b.watch("data of a container")))
    b(Exists(w.at("outer"), b.watch("outer")))
    b(Children(w.at("used"), b.watch("children of a container")))
    b(Children(w.base, b.watch("children of the parent")))
    w.reap()
    b(Get(w.at("used")), any_order=True)
    w.reap()
    b(Children(w.base), any_order=True)
    for name in ("unused", "full", "refilled", "outer", "plain"):
        b(Get(w.at(name)))
    a(CreateContainer(w.at("used")))
    a(Get(w.at("used")))


@scenario
def containers_in_a_transaction_s_way(w: World) -> None:
    """A container counts as any other znode for children, versions and deletes in transactions."""
    a = w.a
    w.reap()
    a(CreateContainer(w.at("c")))
    a.do(Check(w.at("c"), 0), Create(w.at("c", "1")), Create(w.at("c", "1", "2")))
    a.do(Delete(w.at("c", "1", "2")), Delete(w.at("c", "1")), Delete(w.at("c")), Create(w.at("c"), b"plain now"))
    a.do(Create(w.at("c", "1")), Delete(w.at("c", "1")))
    w.reap()
    a(Get(w.at("c")))


WATCHED: dict[str, Callable[[str, Watch], Get | Exists | Children]] = {
    "get": Get,
    "exists": Exists,
    "children": Children,
}


def _changes(x: str) -> dict[str, tuple[tuple[WriteOp, ...], tuple[WriteOp, ...]]]:
    """name: what is there before, and the change."""
    node, child = Create(x, b"d"), Create(f"{x}/c")
    return {
        "created": ((), (node,)),
        "created with a child": ((), (node, child)),
        "set": ((node,), (SetData(x, b"e"),)),
        "set to the same": ((node,), (SetData(x, b"d"),)),
        "checked": ((node,), (Check(x),)),
        "refused": ((node,), (SetData(x, b"e", 9),)),
        "rolled back": ((node,), (SetData(x, b"e"), Create(f"{x}/n"), Check(x, 9))),
        "deleted": ((node,), (Delete(x),)),
        "child created": ((node,), (child,)),
        "child set": ((node, child), (SetData(f"{x}/c", b"e"),)),
        "child deleted": ((node, child), (Delete(f"{x}/c"),)),
        "grandchild created": ((node, child), (Create(f"{x}/c/g"),)),
        "deleted with its child": ((node, child), (Delete(f"{x}/c"), Delete(x))),
        "deleted and created": ((node,), (Delete(x), Create(x, b"new"))),
        "child deleted and created": ((node, child), (Delete(f"{x}/c"), Create(f"{x}/c"))),
        "created and deleted": ((), (node, Delete(x))),
        "sibling created": ((node,), (Create(f"{x}z"),)),
    }


def _watching(w: World, change_by: Actor) -> None:
    """Each way to watch, each change: told once, by the time that the watcher's next reply has come."""
    for kind, read in WATCHED.items():
        for name, (before, change) in _changes("").items():
            at = f"{kind} {name}".replace(" ", "-")
            x = w.at(at)
            before, change = _changes(x)[name]
            if before:
                change_by.do(*before)
            w.b(read(x, w.b.watch(f"{kind}: {name}")))
            change_by.do(*change)
            w.b(Exists(x))
            change_by.do(Create(x))
            change_by.do(SetData(x, b"once more"))
            change_by.do(Create(f"{x}/more"))
            w.b(Exists(x))
    w.b(Sync("/"))


@scenario
def watches_and_another_s_changes(w: World) -> None:
    _watching(w, w.a)


@scenario
def watches_and_own_changes(w: World) -> None:
    """The event comes before the reply to the write that caused it."""
    _watching(w, w.b)


@scenario
def watches_on_what_is_missing(w: World) -> None:
    """Exists watches for its creation; get and children of a missing znode set nothing."""
    a, b, x = w.a, w.b, w.at("x")
    b(Get(x, b.watch("get")))
    b(Children(x, b.watch("children")))
    b(Exists(x, b.watch("exists")))
    b(Exists(w.at("no", "parent"), b.watch("no parent")))
    a.do(Create(x))
    b(Sync("/"))
    a.do(SetData(x, b"d"), Create(w.at("x", "c")))
    b(Sync("/"))
    a.do(Create(w.at("no")))
    b(Sync("/"))
    a.do(Create(w.at("no", "parent"), ephemeral=True))
    b(Sync("/"))
    b(GetMany((x, w.at("none"))))


@scenario
def several_watches_on_one_znode(w: World) -> None:
    """Each is told once; of the same kind or not; the same one may be set twice."""
    a, b, x = w.a, w.b, w.at("x")
    a.do(Create(x))
    one = b.watch("one")
    b(Get(x, one))
    b(Get(x, one))
    b(Get(x, b.watch("two")))
    b(Exists(x, b.watch("three")))
    b(Children(x, b.watch("four")))
    a.do(Create(w.at("x", "c")))
    b(Sync("/"), any_order=True)
    a.do(SetData(x, b"d"))
    b(Sync("/"), any_order=True)
    a.do(SetData(x, b"e"))
    b(Sync("/"))
    b(Children(x, b.watch("five")))
    b(Get(x, b.watch("six")))
    a.do(Delete(w.at("x", "c")), Delete(x))
    b(Sync("/"), any_order=True)
    a.do(Create(x))
    b(Sync("/"))


@scenario
def the_events_of_one_transaction(w: World) -> None:
    """They come in the order of its operations."""
    a, b = w.a, w.b
    a.do(*(Create(w.at(name)) for name in "abcdef"))
    for name in "abcdef":
        b(Get(w.at(name), b.watch(f"data of {name}")))
    b(Exists(w.at("new"), b.watch("data of new")))
    b(Children(w.base, b.watch("children")))
    a.do(SetData(w.at("e"), b""), Check(w.at("f")), Delete(w.at("c")), Create(w.at("new")), SetData(w.at("a"), b""))
    b(Sync("/"))
    a.do(SetData(w.at("f"), b""))
    a.do(SetData(w.at("b"), b""))
    b(Sync("/"))


@scenario
def events_before_the_reads_that_show_the_change(w: World) -> None:
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
def transactions_that_nobody_waits_for(w: World) -> None:
    """Each comes before what is sent later, and tells of a refusal only, before the later reply."""
    a, b, x = w.a, w.b, w.at("x")
    a(Post(Multi((Create(x, b"0"),)), a.watch("made").fire))
    a(Get(x, a.watch("own")))
    b(Sync("/"))
    b(Get(x, b.watch("other")))
    for version in (0, 0, 1):
        a(Post(Multi((Check(x), SetData(x, b"n", version))), a.watch(f"set at {version}").fire))
    a.do(SetData(x, b"last", 2))
    a(Get(x))
    b(Sync("/"))
    b(Get(x))
    a(Post(Multi((Create(w.at("no", "parent")), Create(w.at("y")))), a.watch("without a parent").fire))
    a(Children(w.base))


@scenario
def watches_of_a_session_that_ended(w: World) -> None:
    """Its own watches are not told of what its end does, another's of the same name are."""
    a, b, x = w.a, w.b, w.at("x")
    a.do(Create(x, ephemeral=True))
    b(Exists(x, b.watch("b")))
    a.end()
    b(Sync("/"))
    b.do(Create(x))
    b(Exists(x))


@scenario
def a_session_that_ended_does_nothing(w: World) -> None:
    """Whatever it asks for is refused, and nothing of it happens."""
    a, x = w.a, w.at("x")
    a.do(Create(x))
    a.end()
    a.do(Create(w.at("y")), Delete(x))
    a(CreateContainer(w.at("z")))
    for read in (Get(x), Exists(x), Children(w.base), GetMany((x,)), Sync("/")):
        a(read)
    w.b(Children(w.base))


@scenario
def watches_that_their_reader_dropped(w: World) -> None:
    """A session holds them weakly: nobody is told, and what is watched again is told of again."""
    a, b, x = w.a, w.b, w.at("x")
    a.do(Create(x))
    b(Get(x, b.watch("data")))
    b(Children(x, b.watch("children")))
    b(Exists(w.at("none"), b.watch("missing")))
    b.forget()
    b(Exists(x, b.watch("kept")))
    a.do(SetData(x, b"d"), Create(w.at("x", "c")), Create(w.at("none")))
    b(Sync("/"))
    b(Get(x, b.watch("again")))
    a.do(SetData(x, b"e"))
    b(Sync("/"))


@scenario
def many_reads_in_one(w: World) -> None:
    a = w.a
    a.do(Create(w.at("1"), b"1"), Create(w.at("2"), b""), Create(w.at("e"), b"e", ephemeral=True))
    a(GetMany((w.at("1"), w.at("none"), w.at("2"), w.at("1"), w.at("e"))))
    a(GetMany((w.at("none"),)))
    a(GetMany(tuple(w.at(str(number)) for number in range(300))))


@scenario
def names_of_children(w: World) -> None:
    names = ["p0000;*", "p0000;kind=%2F", "a~b", "…", "x y", "0" * 200]
    w.a.do(*(Create(w.at(name)) for name in names))
    w.a(Children(w.base))
    w.a.do(*(Create(w.at(f"n{number}")) for number in range(300)))
    w.a(Children(w.base))


@scenario
def sizes(w: World) -> None:
    """What is too large is refused before it is sent; what is not, is taken and read back."""
    a, x = w.a, w.at("x")
    a.do(Create(x, b"d" * (MAX_REQUEST - 1_000)))
    a(Get(x))
    a.do(SetData(x, b"d" * MAX_REQUEST))
    a.do(Create(w.at("y")), SetData(x, b"d" * (MAX_REQUEST - 100)))
    a.do(*(SetData(x, b"d" * 300_000) for _ in range(4)))
    a(Get(x))
    a(Exists(w.at("y")))
    a.do(SetData(x, b"d" * (MAX_REQUEST - 1_000)))
    a(GetMany((x, x)))
    a.do(*(Create(w.at(f"n{number}"), b"d" * 100) for number in range(1_000)))
    a(Exists(w.base))
