"""Access control: what we create is ours alone, and what others left open is not used unawares."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final, TypeAlias

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Permissions, make_digest_acl_credential

from ..connection_config import ConnectionConfig
from ..core.zk_operations import Children
from ..errors import NotSecured
from ..log import log
from .connection import rights

# --- Who may come in besides us: what we create is ours alone, and what others left open is not used unawares.
#
# Deleting a znode takes the right to do so at its *parent*, so each znode counts, from the root down.


#: What makes an ancestor of the root a danger: the root could be taken away, or put there by somebody else.
_TAKE_OVER: Final = Permissions.CREATE | Permissions.DELETE | Permissions.ADMIN
_WARNED: Final[set[str]] = set()
_REMEDY: Final = (
    "give them an ACL of yours (zkCli: setAcl -R), choose another root, or say that it is meant: allow_open=True, "
    "zkmq --allow-open, extra allow_open"
)


@dataclass(frozen=True, slots=True)
class ReadAcl:
    """Read a znode's access control list → list of kazoo's ACL entries, or None without the znode.

    ``above``: it is above the root. Where we may not even look, nobody has left a door open: None.
    """

    path: str
    above: bool = False


Look: TypeAlias = Generator[ReadAcl | Children, Any, None]


class Access:
    """What a connection gives its znodes, and what it has looked at.

    With an identity, by credentials or a client certificate, each znode belongs to whoever made it: ZooKeeper's
    scheme ``auth`` has the server fill in every identity that it knows of the session.
    """

    def __init__(self, config: ConnectionConfig) -> None:
        self.secured = bool(config.auth or (config.tls and config.tls.cert))
        self.rights = rights(CREATOR_ALL_ACL if self.secured else OPEN_ACL_UNSAFE)
        self.open_above: tuple[str, ...] = ()
        self._config = config
        self._root = config.root
        self._looked_at: set[str] = set()

    def questions(self, ops: Iterable[object]) -> Iterator[Look]:
        """What is to be looked at before these requests are sent: the root and queues not seen so far."""
        if not self.secured:
            return
        territories: dict[str, None] = {}
        for part in [part for op in ops for part in getattr(op, "ops", None) or (op,)]:
            for path in getattr(part, "paths", None) or (getattr(part, "path", ""),):
                below = path.removeprefix(self._root)
                if path.startswith(self._root) and below[:1] in {"", "/"}:
                    territories[self._root] = None
                    if below:
                        territories[f"{self._root}/{below[1:].partition('/')[0]}"] = None
        for path in territories:
            if path not in self._looked_at:
                yield self._look(path)

    def _look(self, path: str) -> Look:
        """Raise `NotSecured` where a znode, or one of a queue's own, is open to anyone. What is missing we make."""
        acl: list[ACL] | None = yield ReadAcl(path)
        if acl is None:
            return
        opened = [path] if _rights_of_anyone(acl) else []
        if path != self._root:
            for name in (yield Children(path)) or ():
                below = yield ReadAcl(f"{path}/{name}")
                opened += [f"{path}/{name}"] if _rights_of_anyone(below or ()) else []
        self._judge(opened)
        self._looked_at.add(path)

    def look_around(self) -> Look:
        """At the beginning, with an identity: look at the root, and at what is above it. Raises `NotSecured`."""
        if not self.secured:
            return
        names = self._root.strip("/").split("/")
        dangers = []
        for depth in range(len(names)):
            above = "/" + "/".join(names[:depth])
            acl: list[ACL] | None = yield ReadAcl(above, above=True)
            rights = _rights_of_anyone(acl or ())
            if any(self._grants_us(entry) for entry in acl or ()):
                self._judge([above] if rights else [])
            elif rights & _TAKE_OVER:
                dangers.append(above)
        yield from self._look(self._root)
        self.open_above = tuple(dangers)

    def _judge(self, opened: Sequence[str]) -> None:
        if not opened:
            return
        shown = ", ".join(opened[:5]) + (", …" if len(opened) > 5 else "")
        if not self._config.allow_open:
            raise NotSecured(
                f"anyone may use what is there already, your credentials do not close it: {shown}; {_REMEDY}"
            )
        if shown not in _WARNED:  # by this process
            _WARNED.add(shown)
            log.warning("open to anyone, as allowed: %s", shown)

    def _grants_us(self, entry: ACL) -> bool:
        if entry.id.scheme == "x509":
            return self._config.tls is not None and self._config.tls.cert is not None
        return self._config.auth is not None and entry.id.id == make_digest_acl_credential(*self._config.auth)


def _rights_of_anyone(acl: Iterable[ACL]) -> int:
    return reduce(or_, (entry.perms for entry in acl if entry.id.scheme == "world"), 0)
