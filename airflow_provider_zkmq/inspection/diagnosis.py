"""How it is about the way to the queues: the servers, our rights, the clocks, and what is installed here."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from .records import record
from .wording import facts, table

if TYPE_CHECKING:
    from ..engine import AnyClient, FsckReport

_DISTRIBUTION: Final = "airflow-provider-zkmq"
#: Seconds by which clocks may differ.
_CLOCK_TOLERANCE: Final = 5.0


def diagnose(client: AnyClient) -> dict[str, Any]:
    """What the servers tell of themselves; raises what the engine does where they refuse us.

    ``clock_offset``: by how many seconds their clock is before ours, asked for by a small write below the root.
    """
    names, before = client.queues(), time.time()
    now = client.now().timestamp()
    return {
        "server_version": client.server_version,
        "count": len(names),
        "writable": True,
        "clock_offset": round(now - (before + time.time()) / 2, 1) + 0.0,  # no -0.0
        "open_above": list(client.open_above),
        "extras": installed_extras(),
    }


def page(found: dict[str, Any]) -> str:
    """A diagnosis for people, and what of it is to be put right, a sentence each."""
    offset, opened = found["clock_offset"], ", ".join(found["open_above"])
    lines = [facts(found | {"extras": [name for name, there in found["extras"].items() if there]})]
    if abs(offset) > _CLOCK_TOLERANCE:
        lines.append(f"the server's clock is {offset:g} s before this machine's, by which ages are told")
    if opened:
        lines.append(f"anyone may replace the root: give {opened} an ACL (docs/security.md)")
    return "\n".join(lines)


def fsck_story(queue: str, found: FsckReport) -> tuple[dict[str, Any], str]:
    """What is damaged in a queue's tree: a record, and a page."""
    value = record(found)
    findings, count = value["findings"], value.pop("tasks")
    repaired = sum(each["repaired"] for each in findings)
    summary = f"{count} task(s), {len(findings)} damage(s) found, {repaired} repaired"
    text = f"{table(findings, 'path what repaired')}\n{summary}" if findings else summary
    return {"queue": queue, "count": count, **value}, text


def installed_extras() -> dict[str, bool]:
    """The extras of this package, and whether all that each needs is installed."""
    from importlib import metadata  # it brings an e-mail parser, which a worker has no use for

    def is_installed(name: str) -> bool:
        try:
            return bool(metadata.version(name))
        except metadata.PackageNotFoundError:
            return False

    there: dict[str, bool] = {}
    for text in metadata.requires(_DISTRIBUTION) or ():
        if extra := re.search(r"extra == ['\"]([\w-]+)", text):
            there[extra[1]] = there.get(extra[1], True) and is_installed(re.split(r"[^\w.-]", text)[0])
    return dict(sorted(there.items()))
