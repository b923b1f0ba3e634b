"""Several tasks of a file, one after the other: each claim locks the file for itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeAlias

from airflow_provider_zkmq.engine.model import Duration, FilterMethod, Selector, number_of_claims
from airflow_provider_zkmq.filequeue.claims import FileClaim
from airflow_provider_zkmq.filequeue.view import FileView

Method: TypeAlias = FilterMethod | Mapping[str, FilterMethod]


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
    ) -> list[FileClaim]:
        """Take the first `n` tasks that fit (1 to 64), or as many as there are; the first is waited for, see `claim`.

        A call that fails or is interrupted gives back what it took.
        """
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
