"""``zkmq worker``: handle tasks with a Python function, or with a shell command for each task (``--exec``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .claims import Wanted
from .connection import PATIENT, Cli, QueueName
from .options import at_most_one, flag, option, refuse, span
from .verbs import verb

_COMMAND = (
    "run by /bin/sh for each task: data on stdin, result on stdout, non-zero exit fails the task; "
    "in its environment ZKMQ_TASK_ID, ZKMQ_ATTEMPT and ZKMQ_QUEUE; ended with its task and with the worker"
)
_TRANSACTIONAL = "with --handler, which is called with the task and a transaction that completes it"


@dataclass
class Work:
    """The options of a worker, by the names of what `worker_process.run` takes."""

    handler: str | None = option("called with each task; its return is the result", "MODULE:FUNCTION")
    command: str | None = option(_COMMAND, "CMD", names=("--exec",))
    pass_credentials: bool = flag("--pass-credentials", "with --exec: the command inherits ZKMQ_AUTH and the like")
    transactional: bool = flag("--transactional", _TRANSACTIONAL)
    threads: int = option("tasks in hand at once (1); 0: none", "N", 1, ("--threads", "--concurrency"), min=0, max=1000)
    limit: int | None = option("end when so many tasks were handled", "N", names=("--max-tasks",), min=1)
    task_timeout: float | None = span("an attempt that takes longer has failed; a command is ended then")
    lease: float | None = span("claims outlive the ZooKeeper session, and end so long after they were last extended")
    heartbeat: bool = flag(" /--no-heartbeat", "do not extend locks and leases: they bound the handling", True)
    throttle: float = span("a thread's pause between tasks (0)", 0.0)
    prefetch: int = option("claim so many ahead at the most, while handlers are fast (32); 0: none", "N", 32, min=0)
    warn_size: int | None = option("log a warning, at most each 6 h, when more than N tasks are pending", "N", min=0)
    listen: str | None = option("serve /metrics for Prometheus, /livez, /readyz (extra: metrics)", "HOST:PORT")
    until_empty: bool = flag("--until-empty", "end when nothing that fits is left, and if there is no such queue")
    grace: float = span("on SIGTERM, and on SIGHUP, which reloads: time to finish what is in hand (30s)", 30.0)

    def __post_init__(self) -> None:
        at_most_one(handler=self.handler, exec=self.command)
        at_most_one(handler=self.handler, pass_credentials=self.pass_credentials)
        at_most_one(exec=self.command, transactional=self.transactional)
        at_most_one(lease=self.lease, transactional=self.transactional)
        nothing = self.handler is self.command is None
        refuse(
            (self.command is not None and not self.command.strip(), "--exec is empty: it would complete every task"),
            (self.task_timeout is not None and self.task_timeout < 0.1, "--task-timeout must be 100ms or more"),
            (self.threads and nothing, "worker needs --handler or --exec; only --threads 0 has nothing to handle"),
            (self.until_empty and not self.threads, "--until-empty does not go with --threads 0: nothing is emptied"),
        )


@verb("worker", example="zkmq worker orders --exec 'lp -'")
def worker(
    cli: Cli,
    queue: QueueName,
    wanted: Wanted,
    work: Work,
    no_gc: bool = flag("--no-gc", "take no part in clean-up"),
    log_json: bool = flag("--log-json", "log a JSON object a line: time, level, message, queue, task, attempt"),
) -> int:
    """Handle tasks until told to stop; with -v the log has tracebacks, too."""
    from .. import worker_logs, worker_process

    worker_logs.set_up(as_json=log_json, verbose=cli.verbose, queue=queue)
    connect = partial(cli.client, gc=not no_gc, seconds=PATIENT)
    secret = frozenset(filter(None, [cli.tls_key_password_env]))
    done = worker_process.run(connect, queue, secret=secret, **wanted.arguments(), **vars(work))
    value = {"queue": queue, "finished": done.finished, "failed": done.failed}
    return cli.say(value, f"{done.finished} finished, {done.failed} failed")
