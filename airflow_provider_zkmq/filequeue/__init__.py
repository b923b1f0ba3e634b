r"""Queues in files, with the interface of the queues on ZooKeeper: ``Zkmq.connect("textqueue:///path/dir")``.

For one machine, without a server, so that a DAG or a test can begin with a file and move to ZooKeeper by changing the
connection. A queue is ``<dir>/<queue>.tq`` (see `airflow_provider_zkmq.textqueue`), its configuration
``<queue>.conf.json``; results that do not fit into the file are ``<queue>.results/<task id>``.

A task is a message: ``-`` inserted or claimed, ``=`` finished, ``!`` dead. Its variables hold the rest, what changes in
room that was reserved, so that every change is made in place: ``attempts``, ``claims`` (how often it was claimed: the
token), ``due``, ``error``, ``result``, and the mutex, which names who has it and until when. A person may append a
plain line ``-do this``. Its id is ``line-<offset>``; the first claim makes a comment of it (``#``), and appends the
message with all the variables. The same befalls a message whose rooms an editor has trimmed, and a copy of
a message that is still queued.

What holds: a change is made under a lock on the file, which all processes of this library respect; a claim that is not
extended in time is handed out again, attempt + 1, and its late owner gets `ClaimLost`. It outlives the death of any
process, not a loss of power. An editor that writes the file back loses what happened since it read it. A call reads
the whole file where somebody else has changed it. What files cannot promise is refused with `Unsupported` (`refusals`).
"""

from .client import FileClient
from .file_claim import FileClaim, FileClaims
from .queue import FileQueue

__all__ = ["FileClaim", "FileClaims", "FileClient", "FileQueue"]
