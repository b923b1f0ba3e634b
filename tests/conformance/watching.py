"""Scenarios of watches: what they are told, when, and how often."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_zkmq.engine.core.zk_operations import (
    Check,
    Children,
    Create,
    Delete,
    Exists,
    Get,
    GetMany,
    SetData,
    Sync,
    Watch,
    WriteOp,
)
from tests.conformance.world import Actor, World, scenario

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
        for name in _changes(""):
            x = w.at(f"{kind} {name}".replace(" ", "-"))
            before, change = _changes(x)[name]
            if before:
                change_by.do(*before)
            w.b(read(x, w.b.watch(f"{kind}: {name}")))
            change_by.do(*change)
            w.b(Exists(x))
            change_by.play(Create(x), SetData(x, b"once more"), Create(f"{x}/more"))
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
    a, b, x, orphan = w.a, w.b, w.at("x"), w.at("no", "parent")
    b.play(Get(x, b.watch("get")), Children(x, b.watch("children")), Exists(x, b.watch("exists")))
    b(Exists(orphan, b.watch("no parent")))
    changes = ((Create(x),), (SetData(x, b"d"), Create(w.at("x", "c"))), (Create(w.at("no")),))
    for change in (*changes, (Create(orphan, ephemeral=True),)):
        a.do(*change)
        b(Sync("/"))
    b(GetMany((x, w.at("none"))))


@scenario
def several_watches_on_one_znode(w: World) -> None:
    """Each is told once; of the same kind or not; the same one may be set twice."""
    a, b, x, child = w.a, w.b, w.at("x"), w.at("x", "c")
    a.do(Create(x))
    one = b.watch("one")
    b.play(Get(x, one), Get(x, one), Get(x, b.watch("two")))
    b.play(Exists(x, b.watch("three")), Children(x, b.watch("four")))
    for write in (Create(child), SetData(x, b"d"), SetData(x, b"e")):
        a.do(write)
        b(Sync("/"), any_order=True)
    b.play(Children(x, b.watch("five")), Get(x, b.watch("six")))
    a.do(Delete(child), Delete(x))
    b(Sync("/"), any_order=True)
    a.do(Create(x))
    b(Sync("/"))


@scenario
def the_events_of_one_transaction(w: World) -> None:
    """They come in the order of its operations."""
    a, b = w.a, w.b
    a.do(*(Create(w.at(name)) for name in "abcdef"))
    b.play(*(Get(w.at(name), b.watch(f"data of {name}")) for name in "abcdef"))
    b.play(Exists(w.at("new"), b.watch("data of new")), Children(w.base, b.watch("children")))
    a.do(SetData(w.at("e"), b""), Check(w.at("f")), Delete(w.at("c")), Create(w.at("new")), SetData(w.at("a"), b""))
    b(Sync("/"))
    a.play(SetData(w.at("f"), b""), SetData(w.at("b"), b""))
    b(Sync("/"))


@scenario
def watches_of_a_session_that_ended(w: World) -> None:
    """Its own watches are not told of what its end does, another's of the same name are."""
    a, b, x = w.a, w.b, w.at("x")
    a.do(Create(x, ephemeral=True))
    b(Exists(x, b.watch("b")))
    a.end()
    b.play(Sync("/"), Create(x), Exists(x))


@scenario
def watches_that_their_reader_dropped(w: World) -> None:
    """A session holds them weakly: nobody is told, and what is watched again is told of again."""
    a, b, x = w.a, w.b, w.at("x")
    a.do(Create(x))
    b.play(Get(x, b.watch("data")), Children(x, b.watch("children")), Exists(w.at("none"), b.watch("missing")))
    b.forget()
    b(Exists(x, b.watch("kept")))
    a.do(SetData(x, b"d"), Create(w.at("x", "c")), Create(w.at("none")))
    b.play(Sync("/"), Get(x, b.watch("again")))
    a.do(SetData(x, b"e"))
    b(Sync("/"))
