"""What the servers say of themselves: requests received, transactions logged, and the processor time they took."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.embedded import ServerError, ask_metrics

_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_IN_AN_EPOCH: Final = (1 << 32) - 1


@dataclass(frozen=True)
class Reading:
    """What the servers have counted so far; None: they do not say."""

    requests: int | None
    transactions: int | None
    cpu: float | None

    def since(self, before: Reading) -> dict[str, float]:
        """What came on top of an earlier reading."""
        pairs = {name: (getattr(self, name), getattr(before, name)) for name in ("requests", "transactions", "cpu")}
        names = {"requests": "requests", "transactions": "transactions", "cpu": "server_cpu"}
        return {names[name]: new - old for name, (new, old) in pairs.items() if None not in {new, old}}


class Gauge:
    """Reads the servers of a connect string. `pids`: their processes, where they are on this machine."""

    def __init__(self, hosts: str, pids: Sequence[int] = ()) -> None:
        self._servers = [_address(host) for host in hosts.partition("/")[0].split(",")]
        self._pids = pids

    def read(self) -> Reading:
        """A reading; servers that do not allow the commands leave it blank."""
        cpu = _cpu(self._pids)
        try:
            metrics = [ask_metrics(host, port) for host, port in self._servers]
        except ServerError:
            return Reading(None, None, cpu)
        received = sum(int(each["zk_packets_received"]) for each in metrics)
        zxid = max(int(each["Zxid"], 16) for each in metrics)
        return Reading(received, zxid & _IN_AN_EPOCH, cpu)


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    return name.strip("[]"), int(port)


def _cpu(pids: Sequence[int]) -> float | None:
    """Seconds of processor time; None where the system does not tell."""
    try:
        stats = [Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split() for pid in pids]
    except OSError:
        return None
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / _TICKS if stats else None
