"""Rounds of an event loop: procedures that are woken together do not keep it from everybody else.

A loop runs all that is ready before it looks at anything else. A thousand calls that begin at once, or that one event
wakes, would be a round of a second, in which no timer and nothing of others goes on. So procedures have a part of each
round; who comes after that goes on in the next one.
"""

from __future__ import annotations

import asyncio
from typing import Final

#: Seconds of a round for procedures: a tenth of a second is what people, and Airflow's triggerer, begin to notice.
SHARE: Final = 0.05


class Rounds:
    """What procedures of one session have had of the running loop's round. Used on the loop's thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = 0.0

    async def turn(self) -> None:
        """Return in this round of the running loop while procedures have a share of it left, else in a later one."""
        loop = asyncio.get_running_loop()
        # A loop that ended in the middle of a round is another one than the next.
        while self._loop is loop and loop.time() >= self._end:  # noqa: ASYNC110  the next round is what is waited for
            await asyncio.sleep(0)
        if self._loop is not loop:
            self._loop, self._end = loop, loop.time() + SHARE
            loop.call_soon(self._over)

    def _over(self) -> None:
        self._loop = None
