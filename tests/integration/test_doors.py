"""Who may come in: what belongs to whom, what was left open, and why TLS did not come about."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_digest_acl

from airflow_provider_zkmq.embedded import EmbeddedServer, ServerTls, warning
from airflow_provider_zkmq.engine import (
    AccessDenied,
    AsyncZkmq,
    ConfigError,
    Message,
    NotSecured,
    RetryPolicy,
    String,
    TlsRefused,
    Unavailable,
    Zkmq,
)
from airflow_provider_zkmq.engine.core.maintenance.due_work import give_lock_back, take_lock
from airflow_provider_zkmq.engine.zk import acl_check
from airflow_provider_zkmq.engine.zk.procedure_drivers import run
from tests.certificates import Authority, Pem
from tests.integration.clients import kazoo
from tests.integration.command import LIMIT_S, Cli, carry_out
from tests.integration.conftest import taken

OURS, THEIRS = "ann:secret", "bob:other"


@dataclass(frozen=True)
class Doors:
    """A server with a secure port that asks for certificates, and what is needed at it."""

    server: EmbeddedServer
    authority: Authority
    ann: Pem
    bob: Pem
    folder: Path

    def tls(self, who: Pem | None = None) -> dict[str, Any]:
        """The TLS options of somebody, or of nobody."""
        return {"ca": self.authority.ca} | ({} if who is None else {"cert": who.cert, "key": who.key})

    def options(self, identity: str) -> dict[str, Any]:
        """How the owner connects: with a password, a certificate, or both."""
        secure = {"hosts": self.server.hosts, "tls": self.tls(self.ann)}
        by = {
            "digest": {"hosts": self.server.plain_hosts, "auth": OURS},
            "x509": secure,
            "both": secure | {"auth": OURS},
        }
        return by[identity] | {"gc": False}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    authority = Authority(folder, "authority")
    own = authority.issue("server", "127.0.0.1")
    tls = ServerTls(own.cert, own.key, authority.ca)
    with EmbeddedServer(folder / "zookeeper", tls=tls, force_sync=False) as server:
        yield Doors(server, authority, authority.issue("ann"), authority.issue("bob"), folder)


def connected(doors: Doors, auth: str | None = None, who: Pem | None = None) -> AbstractContextManager[KazooClient]:
    """A client of nobody's but kazoo's."""
    options: dict[str, Any] = {"auth_data": [("digest", auth)] if auth else None}
    if who is None:
        return kazoo(doors.server.plain_hosts, **options)
    options |= {"use_ssl": True, "ca": doors.authority.ca, "certfile": who.cert, "keyfile": who.key}
    return kazoo(doors.server.hosts, verify_certs=True, **options)


def owner(doors: Doors, identity: str) -> AbstractContextManager[KazooClient]:
    return connected(doors, OURS if identity != "x509" else None, doors.ann if identity != "digest" else None)


def tree(client: KazooClient, path: str) -> list[str]:
    """Every znode from `path` down."""
    below = [f"{path}/{name}" for name in client.get_children(path)]
    return [path, *itertools.chain.from_iterable(tree(client, each) for each in below)]


def use_everything(zk: Zkmq) -> None:
    """Leave a znode of each kind: lanes, buckets of time, batches, claims, consumers, dead letters and so on."""
    q = zk.queue("q")
    q.configure(filters={"region": String()}, policy=RetryPolicy(attempts=1))
    q.enqueue(b"later", delay=3600)
    q.enqueue_many([Message(b"x", priority=at) for at in range(5)], batch="b", then=Message(b"then"))
    q.enqueue(b"once", {"region": "eu"}, task_id="once", metadata={"a": 1})
    ends: list[Callable[[Any], object]] = [
        lambda claim: claim.complete(b"result"),
        lambda claim: claim.fail("why"),
        lambda claim: claim.release(),
        lambda _claim: None,
        lambda claim: claim.complete(dedupe=60),
    ]
    for end in ends:
        claim = taken(q)
        claim.progress(0.5, "half")
        end(claim)
    taken(q, lease=60)
    with zk.transaction() as tx:
        tx.put("out", b"put")
        tx.commit()
    q.pause()
    q.collect_garbage()


@pytest.mark.parametrize("identity", ["digest", "x509", "both"])
def test_every_znode_belongs_to_who_made_it(doors: Doors, root: str, identity: str) -> None:
    """From the first part of the root down: full rights for each identity of the session, and none for anybody else.

    The maintenance lock, the consumers and the buckets of time, which the server clears away, are among them.
    """
    top = f"{root}-top"
    with Zkmq.connect(root=f"{top}/deep/down", **doors.options(identity)) as zk:
        use_everything(zk)
        q = zk.queue("q")
        assert run(zk._session, take_lock(q._context))
        with owner(doors, identity) as client:
            paths = tree(client, top)
            kinds = {path.removeprefix(f"{top}/deep/down/q/").split("/")[0] for path in paths}
            rights = {tuple(sorted((e.id.scheme, e.perms) for e in client.get_acls(path)[0])) for path in paths}
            names = {e.id.id.split(":")[0] for path in paths for e in client.get_acls(path)[0]}
        run(zk._session, give_lock_back(q._context))
    assert kinds >= {"conf", "queue", "tasks", "consumers", "live", "lock", "batches", "scheduled", "dlq"}, kinds
    ours = {"digest": {"digest": "ann"}, "x509": {"x509": "CN=ann"}, "both": {"digest": "ann", "x509": "CN=ann"}}
    assert rights == {tuple((scheme, 31) for scheme in ours[identity])}
    assert names == {*ours[identity].values()}


@pytest.mark.parametrize("identity", ["digest", "x509"])
def test_others_read_change_and_delete_nothing(doors: Doors, root: str, identity: str) -> None:
    """Nobody at all, somebody else by password, and by certificate: at each znode, parents included."""
    with Zkmq.connect(root=root, **doors.options(identity)) as zk:
        use_everything(zk)
        with owner(doors, identity) as client:
            before = tree(client, root)
        for stranger in (connected(doors), connected(doors, THEIRS), connected(doors, who=doors.bob)):
            with stranger as other:
                for path in before:
                    _is_shut_out(other, path, is_root=path == root)
        with owner(doors, identity) as client:
            assert tree(client, root) == before
        zk.queue("q").resume()
        taken(zk.queue("q"))


def _is_shut_out(client: KazooClient, path: str, *, is_root: bool) -> None:
    attempts: list[Callable[[], Any]] = [
        *(partial(call, path) for call in (client.get, client.get_children, client.get_acls)),
        lambda: client.set(path, b"mine"),
        lambda: client.set_acls(path, OPEN_ACL_UNSAFE),
        lambda: client.create(f"{path}/mine"),
        # Who may delete in "/" may delete a root once it is empty: its owner is warned of that.
        *([] if is_root else [partial(client.delete, path)]),
    ]
    for attempt in attempts:
        with pytest.raises(NoAuthError):
            attempt()


async def test_strangers_are_told_that_they_are(doors: Doors, root: str) -> None:
    """At once, whichever identity they have or lack; the error says who they are and never what their password is."""
    with Zkmq.connect(root=root, **doors.options("x509")) as zk:
        zk.queue("q").enqueue(b"x")
    strangers: dict[str, dict[str, Any]] = {
        "anonymous": {"hosts": doors.server.plain_hosts},
        "'bob'": {"hosts": doors.server.plain_hosts, "auth": THEIRS},
        "bob.pem": {"hosts": doors.server.hosts, "tls": doors.tls(doors.bob)},
    }
    for who, stranger in strangers.items():
        for caught in await refusals(AccessDenied, root=root, **stranger):
            assert who in caught
            assert "other" not in caught


async def refusals(kind: type[Exception], **options: Any) -> list[str]:
    """What a connection is refused with, by both fronts."""
    with pytest.raises(kind) as blocking:
        await asyncio.to_thread(partial(Zkmq.connect, **options))
    with pytest.raises(kind) as asynchronous:
        await AsyncZkmq.connect(**options)
    return [str(blocking.value), str(asynchronous.value)]


def test_a_server_that_asks_for_no_certificate_gets_nothing(doors: Doors, root: str, tmp_path: Path) -> None:
    """It cannot know whose a znode is: then nothing is written, rather than something for anyone.

    A bound on its connections holds: the client beyond it does not get in; the others go on.
    """
    own = doors.authority.issue("lax", "127.0.0.1")
    tls = ServerTls(own.cert, own.key)
    with EmbeddedServer(tmp_path, tls=tls, max_connections=1, force_sync=False) as server:
        with Zkmq.connect(server.hosts, root=root, tls=doors.tls(doors.ann), gc=False) as zk:
            with pytest.raises(AccessDenied, match="clientAuth"):
                zk.queue("q").enqueue(b"x")
        with Zkmq.connect(server.plain_hosts, root=root, gc=False) as anonymous:
            assert anonymous.queues() == []
            with pytest.raises(Unavailable):
                Zkmq.connect(server.plain_hosts, root=root, connect_timeout=1)
            anonymous.queue("q").enqueue(b"x")


# --- what was there before


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What owners were told in this test."""
    monkeypatch.setattr(acl_check, "_WARNED", set())
    caplog.set_level(logging.WARNING)
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("identity", ["digest", "x509"])
def test_an_open_root_is_refused(doors: Doors, root: str, identity: str, warnings: Callable[[], str]) -> None:
    """An owner hears so when it connects. Where that is allowed it is told, and what it makes is closed."""
    with Zkmq.connect(doors.server.plain_hosts, root=root, gc=False) as anonymous:
        anonymous.queue("q").enqueue(b"x", task_id="old")
    with pytest.raises(NotSecured, match=root):
        Zkmq.connect(root=root, **doors.options(identity))
    with Zkmq.connect(root=root, allow_open=True, **doors.options(identity)) as zk:
        zk.queue("q").enqueue(b"y", task_id="new")
        assert zk.queue("q").task("old").data == b"x"
        assert f"open to anyone, as allowed: {root}" in warnings()
    with connected(doors) as anyone, pytest.raises(NoAuthError):
        anyone.get(f"{root}/q/tasks/new/data")


async def test_a_queue_that_was_left_open_is_refused(doors: Doors, root: str) -> None:
    """Below a root that is closed: whichever of its znodes it is, at the first use; other queues can be used."""
    with Zkmq.connect(doors.server.plain_hosts, root=root, gc=False) as anonymous:
        for name in ("whole", "part"):
            anonymous.queue(name).enqueue(b"x")
    with connected(doors, OURS) as client:
        client.set_acls(root, CREATOR_ALL_ACL)
        for path in tree(client, f"{root}/part"):
            client.set_acls(path, CREATOR_ALL_ACL)
        client.set_acls(f"{root}/part/tasks", OPEN_ACL_UNSAFE)
    with Zkmq.connect(root=root, **doors.options("digest")) as zk:
        for name, where in (("whole", f"{root}/whole"), ("part", f"{root}/part/tasks")):
            for call in (zk.queue(name).counts, zk.queue(name).claim, lambda: zk.queue(name).enqueue(b"y")):  # noqa: B023
                with pytest.raises(NotSecured, match=where):
                    call()
        assert zk.queue("fresh").enqueue(b"z", task_id="z") == "z"
    async with AsyncZkmq.connect(root=root, **doors.options("digest")) as azk:
        with pytest.raises(NotSecured):
            await azk.queue("part").counts()
    with Zkmq.connect(root=root, allow_open=True, **doors.options("digest")) as zk:
        assert zk.queue("part").counts()["inserted"] == 1
        taken(zk.queue("whole"))


def test_a_root_that_somebody_else_makes_first_is_looked_at(doors: Doors, root: str) -> None:
    """It was not there when the owner connected: it is looked at before anything is written below it."""
    with Zkmq.connect(root=root, **doors.options("digest")) as zk:
        with connected(doors) as anyone:
            anyone.create(root)
        with pytest.raises(NotSecured, match=root):
            zk.queue("q").enqueue(b"x")
        with connected(doors) as anyone:
            assert anyone.get_children(root) == []


def test_an_owner_is_told_of_an_open_ancestor(doors: Doors, root: str, warnings: Callable[[], str]) -> None:
    """Who may delete and create above the root could put another in its place; who asks is told, and no log is.

    One that bears our name was meant to be closed: it is refused.
    """
    with Zkmq.connect(root=f"{root}/deep", **doors.options("x509")) as zk:
        zk.queue("q").enqueue(b"x")
        assert zk.open_above == ("/",)
    assert "/ is open to anyone" not in warnings()
    assert f"{root} is open" not in warnings()
    with connected(doors, OURS) as client:
        client.create(f"{root}-ours", acl=[make_digest_acl("ann", "secret", all=True), *OPEN_ACL_UNSAFE])
    with pytest.raises(NotSecured, match=f"{root}-ours"):
        Zkmq.connect(root=f"{root}-ours/deep", **doors.options("digest"))


def test_without_credentials_everything_is_open_as_ever(doors: Doors, root: str, warnings: Callable[[], str]) -> None:
    """Nobody is told anything, and nothing is looked at."""
    with Zkmq.connect(doors.server.plain_hosts, root=root, gc=False) as zk:
        zk.queue("q").enqueue(b"x")
        assert "ReadAcl" not in zk.requests
    assert warnings() == ""


# --- TLS


def mistakes(doors: Doors) -> Iterator[tuple[type[Exception], str, dict[str, Any]]]:
    """Each mistake: its error, what its sentence says, and the options."""
    other, text = Authority(doors.folder, "other"), doors.folder / "text.pem"
    foreign, shut = other.issue("mallory"), doors.authority.issue("shut", password="open sesame")
    text.write_text("no certificate")
    hosts, ann, ca = doors.server.hosts, doors.tls(doors.ann), doors.tls()
    refused = {
        "did not sign": ann | {"ca": other.ca},
        "demands a client certificate": ca,
        "refuses the client certificate": doors.tls(foreign),
    }
    senseless = {
        "does not open": doors.tls(shut) | {"key_password": "guess"},
        "is encrypted: give key_password": doors.tls(shut),
        "without its private key": ca | {"cert": doors.ann.cert},
        "without a certificate": ca | {"key": doors.ann.key},
        "is not that of the certificate": ann | {"key": doors.bob.key},
        "must hold certificates in PEM": ann | {"ca": str(text)},
        "tls is not understood": ann | {"check_hostname": False},
    }
    yield TlsRefused, "another host name", {"hosts": hosts.replace("127.0.0.1", "localhost"), "tls": ann}
    for kind, some in ((TlsRefused, refused), (ConfigError, senseless)):
        for sentence, tls in some.items():
            yield kind, sentence, {"hosts": hosts, "tls": tls}


async def test_each_tls_mistake_has_its_own_sentence_at_once(
    doors: Doors, root: str, subtests: pytest.Subtests
) -> None:
    """And an error of its own, which no time-out has; no password is shown, and nobody is asked on the terminal."""
    told: list[str] = []
    for kind, sentence, options in mistakes(doors):
        with subtests.test(msg=sentence):
            said = await refusals(kind, root=root, connect_timeout=60, session_timeout=30, **options)
            assert all(sentence in text and "guess" not in text for text in said), said
            told.append(said[0].split(":", 3)[-1])
    assert len(set(told)) == len(told)


def test_a_port_without_tls_is_named(doors: Doors, root: str) -> None:
    """TLS to a port that does not speak it, and the other way round: the error shows what was met."""
    secure, plain = doors.server.hosts, doors.server.plain_hosts
    for hosts, tls, met in ((plain, doors.tls(doors.ann), "a port without TLS"), (secure, None, "a port for TLS only")):
        with pytest.raises(Unavailable, match=rf"{hosts} within .*\({hosts} .*{met}"):
            Zkmq.connect(hosts, root=root, tls=tls, connect_timeout=1)


def test_files_decide_whom_to_trust_and_are_used_as_they_are(
    doors: Doors, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CA alone switches TLS on, and what the system trusts is not asked, unless there is none.

    A key may have a password, and may stand beside its certificate.
    """
    other, folder = Authority(doors.folder, "system"), doors.folder
    shut = doors.authority.issue("opened", password="open sesame")
    (folder / "both.pem").write_bytes(Path(doors.ann.cert).read_bytes() + Path(doors.ann.key).read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", doors.authority.ca)  # what OpenSSL takes for the system's
    with pytest.raises(TlsRefused, match="did not sign"):
        Zkmq.connect(doors.server.hosts, root=root, tls={"ca": other.ca}, connect_timeout=30)
    for tls in (
        {"cert": doors.ann.cert, "key": doors.ann.key},
        doors.tls(shut) | {"key_password": "open sesame"},
        doors.tls() | {"cert": str(folder / "both.pem")},
    ):
        with Zkmq.connect(doors.server.hosts, root=root, tls=tls, gc=False) as zk:
            assert zk.queues() == []
            assert "sesame" not in repr(zk.config)


def test_many_replies_in_one_record_are_read_at_once(doors: Doors, root: str) -> None:
    """TLS may have read more than was asked of it: what it holds is not left until the next heartbeat."""
    options = doors.options("x509") | {"session_timeout": 60, "request_timeout": 5}
    with Zkmq.connect(root=root, **options) as zk:
        q = zk.queue("q")
        ids = [q.enqueue_many([Message(b"x" * 100) for _ in range(300)]) for _ in range(3)]
        assert q.counts()["inserted"] == 900
        assert len(q.tasks()) == sum(map(len, ids))


# --- the command line


def test_the_command_line_speaks_tls(doors: Doors, root: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Files by options or by the environment; the key's password by a variable or a file, never as an argument."""
    shut = doors.authority.issue("shell", password="open sesame")
    files = {"ca": doors.authority.ca, "cert": shut.cert, "key": shut.key}
    options = " ".join(f"--tls-{name}={path}" for name, path in files.items())
    variables = {f"ZKMQ_TLS_{name.upper()}": path for name, path in files.items()}
    (tmp_path / "password").write_text("open sesame\n")
    for source, env, argv in (
        ("environment", variables | {"ZKMQ_TLS_KEY_PASSWORD": "open sesame"}, ""),
        ("options", {"ZKMQ_TLS_KEY_PASSWORD": "open sesame"}, options),
        ("named variable", {"MINE": "open sesame"}, f"{options} --tls-key-password-env=MINE"),
        ("file", {}, f"{options} --tls-key-password-file={tmp_path / 'password'}"),
    ):
        with subtests.test(msg=source):
            cli = Cli(doors.server.hosts, root)
            cli.env |= env
            task_id = cli.ask(f"enqueue q x --create {argv}")["id"]
            cli.ask(f"{argv} show q {task_id}", data="x")


def test_the_command_line_tells_what_is_wrong_with_tls_or_open(doors: Doors, root: str) -> None:
    """In one line, with the exit codes of bad input and of no connection; what is open is allowed where it says so."""
    cli, ca = Cli(doors.server.hosts, root), f"--tls-ca {doors.authority.ca}"
    cli.ask(f"queues {ca}", 6, says="demands a client certificate")
    cli.ask(f"queues {ca} --tls-cert {doors.ann.cert}", 2, says="without its private key")
    plain = Cli(doors.server.plain_hosts, root)
    plain.ask("enqueue q x --create")
    plain.ask(f"queues --auth {OURS}", 2, says="--allow-open")
    plain.ask(f"queues --auth {OURS} --allow-open", queues=["q"])


# --- the server for development


def test_a_server_that_others_reach_says_so(tmp_path: Path) -> None:
    """Unless it lets in only those whose certificates its authority signed. It bounds each one's connections.

    On loopback all clients share an address, so there it does not, unless it is told to.
    """
    for host, warned in (("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("zk1", True)):
        assert [warning(host, tls) is not None for tls in (None, ServerTls("cert", "key"))] == [warned, warned]
        assert warning(host, ServerTls("cert", "key", "ca")) is None
    for host, told, bound in (("127.0.0.1", None, 0), ("10.0.0.1", None, 60), ("zk1", 7, 7)):
        made = EmbeddedServer(tmp_path, host=host, max_connections=told)
        assert f"maxClientCnxns={bound}\n" in made._settings.zoo_cfg(2181, [])


def test_what_a_server_cannot_be_told_is_refused(tmp_path: Path) -> None:
    """Before anything is started."""
    for argv, why in (
        (("--tls-cert", "c"), "needs --tls-cert and --tls-key"),
        (("--tls-cert", "c", "--tls-key", "missing.key"), "cannot be read"),
        (("--max-connections", "-1"), "max_connections must be at least 0"),
    ):
        ended = carry_out(("server", "--data-dir", str(tmp_path / "zk"), "--port", "0", *argv), {**os.environ})
        assert (ended.returncode, why in ended.stderr) == (2, True), ended.stderr


def test_what_a_server_keeps_is_its_owner_s_alone(doors: Doors) -> None:
    """Its key; snapshots and logs, which hold the payloads of closed queues; an encrypted key it does not take."""
    folder = doors.folder / "zookeeper"
    for kept in (folder, folder / "node-1" / "keystore.pem"):
        assert kept.stat().st_mode & 0o077 == 0
    shut = doors.authority.issue("closed", password="open sesame")
    with pytest.raises(ConfigError, match="PKCS #8 without a password"):
        EmbeddedServer(doors.folder / "other", tls=ServerTls(shut.cert, shut.key)).start()


@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.full)])
def test_the_command_serves_tls(doors: Doors, root: str, tmp_path: Path, nodes: int) -> None:
    """An ensemble, too: its secure ports are told first, and those of loopback beside them."""
    own = doors.authority.issue("node", "127.0.0.1")
    argv = ["server", "--data-dir", str(tmp_path / "zk"), "--port", "0", "--ensemble", str(nodes), "--json"]
    argv += ["--tls-cert", own.cert, "--tls-key", own.key, "--tls-ca", doors.authority.ca]
    with Cli("", root).background(*argv) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with Zkmq.connect(ready["hosts"], root=root, tls=doors.tls(doors.ann), gc=False) as zk:
            zk.queue("q").enqueue(b"x", task_id="t")
        plain = ready["plain_hosts"].split(",")
        assert [each.rpartition(":")[0] for each in plain] == ["127.0.0.1"] * nodes
        with pytest.raises(AccessDenied):
            Zkmq.connect(ready["plain_hosts"], root=root)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
