"""Several tasks of a file, one after the other: each claim locks the file for itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from airflow_provider_zkmq.engine.model import Duration, FilterMethod, Selector, number_of_claims, optional_seconds
from airflow_provider_zkmq.filequeue.claims import FileClaim
from airflow_provider_zkmq.filequeue.loop import FileClaims
from airflow_provider_zkmq.filequeue.refusals import BOUNDS, refuse
from airflow_provider_zkmq.filequeue.view import FileView

Method: TypeAlias = FilterMethod | Mapping[str, FilterMethod]
#: Who waits without a bound asks again after so many seconds.
LONG: Final = 600.0


class Several(FileView):
    """What a queue in a file does with several tasks at once."""

    @abstractmethod
    def claim(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration = 0,
        lease: Duration | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> FileClaim | None:
        """Take the first task that fits."""

    def claim_many(
        self,
        n: int,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration = 0,
        lease: Duration | None = None,
        stopping: Callable[[], bool] = lambda: False,
        ahead: Literal["all"] | bool = False,  # noqa: ARG002  in a file, each claim counts at once
        max_leases: int | None = None,
    ) -> list[FileClaim]:
        """Take the first `n` tasks that fit (1 to 64), or as many as there are; the first is waited for, see `claim`.

        A call that fails or is interrupted gives back what it took.
        """
        refuse({BOUNDS: max_leases is not None})
        most = number_of_claims(n)
        claims: list[FileClaim] = []
        try:
            while len(claims) < most:
                wait = 0 if claims else timeout
                claim = self.claim(node, filter_method, selector=selector, timeout=wait, lease=lease, stopping=stopping)
                if claim is None:
                    break
                claims.append(claim)
        except BaseException:
            for claim in claims:
                claim.release()
            raise
        return claims

    def claims(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration | None = None,
        lease: Duration | None = None,
        prefetch: int = 1,
        stopping: Callable[[], bool] = lambda: False,
    ) -> FileClaims:
        """Loop over the tasks that fit; what the body has not settled when the loop comes back is completed.

        See `Queue.claims`. `prefetch` is checked, and no more: each claim locks the file for itself.
        """
        number_of_claims(prefetch, "prefetch")
        span = optional_seconds("timeout", timeout)

        def take() -> FileClaim | None:
            wait = LONG if span is None else span
            choice: dict[str, Any] = {"selector": selector, "timeout": wait, "lease": lease, "stopping": stopping}
            while True:
                claim = self.claim(node, filter_method, **choice)
                if claim is not None or span is not None or stopping():
                    return claim

        return FileClaims(take)
