"""`Zkmq.connect`, which chooses between ZooKeeper and queue files: the one module above both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ..environment import DEFAULT_HOSTS, DEFAULT_ROOT, FILES
from .api.client import Client
from .connection_config import ConnectionConfig

if TYPE_CHECKING:
    from ..filequeue import FileClaim, FileClient, FileQueue
    from .api.queue import Claim, Queue

#: What a connection, a queue and a claim of either are to whoever uses both.
AnyClient: TypeAlias = "Zkmq | FileClient"
AnyQueue: TypeAlias = "Queue | FileQueue"
AnyClaim: TypeAlias = "Claim | FileClaim"


class Zkmq(Client):
    """A connection, blocking; usable from several threads, and as a context manager.

    One is enough for a process: every queue, claim, wait and transaction shares its session.
    """

    @classmethod
    def connect(
        cls, hosts: str = DEFAULT_HOSTS, root: str = DEFAULT_ROOT, *, gc: bool = True, **options: Any
    ) -> Self | FileClient:
        """Connect to ZooKeeper, waiting at most ``connect_timeout``.

        `hosts`: ``host:port,host:port``; `root`: the znode under which the queues live. Options: ``auth``
        (``"user:password"``) and ``tls`` (`Tls` or a mapping; a certificate is an identity, too): what is created then
        belongs to that identity alone, and what anyone may use is refused unless ``allow_open``;
        ``session_timeout``, ``connect_timeout``, ``request_timeout`` (seconds). `gc`: take part in clean-up.
        Raises `ConfigError`, also where what stands under the root has another version's layout; `Unavailable` naming
        the hosts, `HostNotFound` and `TlsRefused` at once; `AccessDenied`, `NotSecured`.

        ``textqueue:///path/dir`` instead of hosts: a `FileClient`, with those methods that a file can carry out.
        """
        if isinstance(hosts, str) and hosts.startswith(FILES):
            from ..filequeue import FileClient

            return FileClient.connect(hosts, root, gc=gc, **options)
        return cls(ConnectionConfig.of(hosts, root, **options), gc=gc).start()
