"""One pool of equal consumers: the M/M/c queue by Erlang's formula, and what becomes of it as service times vary.

Sources: A. K. Erlang, "Solution of some problems in the theory of probabilities" (1917), for the chance to wait, by
the recursion of Erlang B. A. O. Allen, "Probability, Statistics, and Queueing Theory" (1978), for the factor
(1 + C²) / 2 of Allen and Cunneen on the time that is waited; with many servers that is too much where C² > 1, and too
little where C² < 1. T. Kimura, "A two-moment approximation for the mean waiting time in the GI/G/s queue", Management
Science 32 (1986), mends that by the wait at constant service times, for which there is the approximation of
G. P. Cosmetatos, INFOR 13 (1975).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: More consumers than this are never suggested.
MOST = 100_000


@dataclass(frozen=True, slots=True)
class Wait:
    """How long tasks wait in the long run: the `chance` of waiting at all, and the `mean` of all tasks, in seconds.

    Both are of a queue in balance; in one that is not, everybody waits and the mean has no end.
    """

    chance: float
    mean: float

    @property
    def endless(self) -> bool:
        """More arrives than can be served."""
        return math.isinf(self.mean)

    def quantile(self, point: float) -> float:
        """The wait in seconds that `point` of the tasks stay below: who waits at all does so exponentially."""
        if self.endless or self.chance <= 1 - point:
            return math.inf if self.endless else 0.0
        return self.mean / self.chance * math.log(self.chance / (1 - point))

    def times(self, factor: float) -> Wait:
        """The same, waited so many times as long."""
        return Wait(self.chance, self.mean * factor)


ENDLESS = Wait(1.0, math.inf)
NONE = Wait(0.0, 0.0)


def erlang_c(load: float, servers: int) -> float:
    """The chance that an arriving task finds all `servers` busy; `load`: arrival rate times mean service time."""
    if load >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def pool(arrivals: float, service: float, servers: int) -> Wait:
    """M/M/c: `arrivals` a second, a mean `service` time in seconds, so many `servers`."""
    load = arrivals * service
    if load == 0:
        return NONE
    if load >= servers:
        return ENDLESS
    chance = erlang_c(load, servers)
    return Wait(chance, chance * service / (servers - load))


def variation(squared: float, utilisation: float, servers: int) -> float:
    """How many times as long tasks wait as at exponential service times; `squared`: of C, the coefficient of variation.

    With one server, and in the limit of full use, that is Allen and Cunneen's (1 + C²) / 2.
    """
    gap = (1 - utilisation) * (servers - 1) * (math.sqrt(4 + 5 * servers) - 2)
    constant = min(1.0, (1 + gap / (16 * utilisation * servers)) / 2)
    return constant * (1 + squared) / (2 * squared * constant + 1 - squared)
