"""What is wrong with the files, told once in the log: what is stepped over, and who may read them."""

from __future__ import annotations

import threading
from typing import Final

from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.textqueue import TextQueue

_MOST: Final = 1_000
_OTHERS: Final = 0o007


class Notices:
    """Each notice is logged once, as long as the connection lasts; in bounded memory."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, notice: str) -> None:
        """Log a notice that was not logged before."""
        with self._lock:
            if notice in self._told or len(self._told) >= _MOST:
                return
            self._told.add(notice)
        log.warning("%s", notice)

    def look_at(self, file: TextQueue) -> None:
        """Tell of a file that others may read or write: payloads may be secret."""
        if file.mode & _OTHERS:
            self.tell(f"{file.path} is open to every user of this machine (mode {file.mode:o}): chmod o= to close it")
