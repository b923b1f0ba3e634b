"""Scenarios of what belongs to a session, and of what the server deletes by itself."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.zk_operations import (
    Check,
    Children,
    Create,
    CreateContainer,
    Delete,
    Exists,
    Get,
    GetMany,
    SetData,
    Sync,
)
from tests.conformance.world import World, scenario


@scenario
def ephemerals(w: World) -> None:
    a, b, x, child = w.a, w.b, w.at("x"), w.at("x", "child")
    a.play(Create(x, b"mine", ephemeral=True), Get(x))
    b.play(Get(x), Create(child))
    a.play(Create(child, ephemeral=True), (Create(w.at("e"), ephemeral=True), Create(w.at("e", "child"))))
    a(CreateContainer(child))
    b.play(SetData(x, b"yours", 0), Create(x, ephemeral=True))
    a(Get(x))
    b.do(Delete(x))
    a(Get(x))
    b.do(Create(x, ephemeral=True))
    a(Get(x))


@scenario
def the_end_of_a_session(w: World) -> None:
    """All its ephemerals go at one moment, and those that watch any of them are told; what others made stays."""
    a, b = w.a, w.b
    names, parents = [w.at("p", "1"), w.at("p", "2"), w.at("q", "1")], [w.at("p"), w.at("q"), w.at("r")]
    a.play(tuple(Create(name) for name in parents), tuple(Create(name, b"d", ephemeral=True) for name in names))
    b.do(Create(w.at("p", "b"), ephemeral=True))
    b.play(*(Exists(name, b.watch(f"data of {name}")) for name in (*names, *parents, w.at("p", "b"))))
    b.play(*(Children(name, b.watch(f"children of {name}")) for name in (*names, *parents)))
    b(Get(names[0], b.watch("data again")))
    a.end()
    b(Children(w.at("p")), any_order=True)
    b.play(Children(w.at("q")), Children(w.at("r")), Get(w.at("p", "b")), Exists(w.at("p")))
    b.play(*(Exists(name) for name in names))


@scenario
def what_a_session_no_longer_owns_outlives_it(w: World) -> None:
    """An ephemeral that was deleted, its name taken by something else: the end of its session does not touch that."""
    a, b = w.a, w.b
    names = [w.at(name) for name in ("persistent", "yours", "container", "gone", "mine again")]
    for name in names:
        a.do(Create(name, ephemeral=True))
        b.do(Delete(name))
    b.play((Create(names[0]), Create(names[1], ephemeral=True)), CreateContainer(names[2]))
    a.play(Create(names[4], ephemeral=True), (Create(w.at("refused"), ephemeral=True), Create(names[0])))
    b.do(Create(w.at("refused")))
    a.end()
    b.play(*(Exists(name) for name in (*names, w.at("refused"))))


@scenario
def a_session_that_ended_does_nothing(w: World) -> None:
    """Whatever it asks for is refused, and nothing of it happens."""
    a, x = w.a, w.at("x")
    a.do(Create(x))
    a.end()
    a.play((Create(w.at("y")), Delete(x)), CreateContainer(w.at("z")))
    a.play(Get(x), Exists(x), Children(w.base), GetMany((x,)), Sync("/"))
    w.b(Children(w.base))


@scenario
def containers(w: World) -> None:
    """Reaped once emptied; not before they had a child, nor while they have one."""
    a, b, used = w.a, w.b, w.at("used")
    w.reap()  # the next time is a second away
    a.play(*(CreateContainer(w.at(it)) for it in ("unused", "used", "full", "refilled", "outer", "ephemeral")))
    a.play(CreateContainer(used), CreateContainer(w.at("no", "parent")), Create(used), Get(used))
    a.play(SetData(used, b"data", 0), Get(used))
    a.do(Create(w.at("used", "1")), Create(w.at("full", "1")), Create(w.at("refilled", "1")))
    a.play(CreateContainer(w.at("outer", "inner")), Create(w.at("outer", "inner", "1")), Delete(used))
    a.do(Delete(w.at("used", "1")), Delete(w.at("refilled", "1")))
    a.do(Create(w.at("refilled", "2")), Delete(w.at("outer", "inner", "1")))
    c = w.actor("c")
    c.do(Create(w.at("ephemeral", "1"), ephemeral=True))
    c.end()
    a.play((Create(w.at("plain")), Create(w.at("plain", "1"))), Delete(w.at("plain", "1")))
    a.play(CreateContainer(w.at("deleted")), Delete(w.at("deleted")))
    b.play(Get(used, b.watch("data of a container")), Exists(w.at("outer"), b.watch("outer")))
    b(Children(used, b.watch("children of a container")))
    b(Children(w.base, b.watch("children of the parent")))
    w.reap()
    b(Get(used), any_order=True)
    w.reap()
    b(Children(w.base), any_order=True)
    b.play(*(Get(w.at(name)) for name in ("unused", "full", "refilled", "outer", "plain")))
    a.play(CreateContainer(used), Get(used))


@scenario
def containers_in_a_transaction_s_way(w: World) -> None:
    """A container counts as any other znode for children, versions and deletes in transactions."""
    a, c, child, grandchild = w.a, w.at("c"), w.at("c", "1"), w.at("c", "1", "2")
    w.reap()
    a.play(CreateContainer(c), (Check(c, 0), Create(child), Create(grandchild)))
    a.do(Delete(grandchild), Delete(child), Delete(c), Create(c, b"plain now"))
    a.do(Create(child), Delete(child))
    w.reap()
    a(Get(c))
