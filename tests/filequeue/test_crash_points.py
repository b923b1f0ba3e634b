"""A process that dies between any two writes of a call: the task goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import ClaimLost, RetryPolicy, Zkmq
from airflow_provider_zkmq.filequeue import FileClaim
from airflow_provider_zkmq.textqueue import TextQueue
from tests.filequeue.conftest import taken

CALLS: dict[str, Callable[[FileClaim], object]] = {
    "complete": lambda claim: claim.complete("r"),
    "complete in a file": lambda claim: claim.complete(b"\xff" * 300),
    "fail": lambda claim: claim.fail("broken", backoff=0.01),
    "fail for good": lambda claim: claim.fail("broken", retry=False),
    "release": lambda claim: claim.release(),
    "extend": lambda claim: claim.extend(0.1),
}


class Crash(BaseException):
    """The process is gone."""


def crash_after(monkeypatch: pytest.MonkeyPatch, writes: int, call: Callable[[], object]) -> bool:
    """Carry out so many writes of a call and no more; whether there were more."""
    left = [writes]

    def counting(write: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object) -> object:
            if left[0] == 0:
                raise Crash
            left[0] -= 1
            return write(*args)

        return counted

    with monkeypatch.context() as patch:
        for name in ("_write", "_write_at_the_end"):
            patch.setattr(TextQueue, name, counting(getattr(TextQueue, name)))
        try:
            call()
        except Crash:
            return True
    return False


def goes_on(folder: Path) -> int:
    """Claim what is there until it has ended; how often that was possible."""
    with Zkmq.connect(f"textqueue://{folder}") as zk:
        q = zk.queue("a")
        claims = 0
        while q.counts()["finished"] + q.counts()["dead"] == 0:
            if (claim := q.claim(timeout=20)) is not None:
                claims += 1
                claim.complete("r")
        (task,) = q.tasks()
        assert (task.data, task.attempt <= 3) == (b"do this", True)
        return claims


@pytest.mark.parametrize("line", ["-do this\n", "whole", "held"])
def test_a_claim_that_is_cut_off_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Of a plain line, a whole message, and one that another let expire: claimed again, once, its text whole."""
    for writes in range(20):
        folder = tmp_path / str(writes)
        q = Zkmq.connect(f"textqueue://{folder}").queue("a")
        if line.startswith("-"):
            q.path.write_text(line)
        else:
            q.enqueue("do this", policy=RetryPolicy(attempts=3, factor=0))
        late = taken(q, lease=0.05) if line == "held" else None
        crashed = crash_after(monkeypatch, writes, lambda q=q: q.claim(lease=0.05, timeout=5))
        assert goes_on(folder) == 1
        if late is not None:
            with pytest.raises(ClaimLost):
                late.complete("late")
        if not crashed:
            break
    assert (crashed, writes) == (False, {"-do this\n": 6, "whole": 3, "held": 3}[line])


@pytest.mark.full
def test_a_settlement_that_is_cut_off_happened_or_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Either the task has ended, or it is claimed again, within its attempts."""
    for name, call in CALLS.items():
        for writes in range(20):
            with subtests.test(name, writes=writes):
                folder = tmp_path / name / str(writes)
                q = Zkmq.connect(f"textqueue://{folder}").queue("a")
                q.enqueue("do this", policy=RetryPolicy(attempts=3, factor=0))
                claim = taken(q, lease=0.5)
                crashed = crash_after(monkeypatch, writes, lambda claim=claim, call=call: call(claim))
                assert goes_on(folder) <= 1
            if not crashed:
                break
        assert not crashed
        assert writes >= 1
