"""Where the page of queues is: its addresses below Airflow's own, for links and messages."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

#: Where the page's app stands below Airflow's own address, and its name in the address of Airflow's frame.
PREFIX: Final = "/zkmq"
ROUTE: Final = "zkmq-queues"
#: An address names so many tasks.
MOST_TASKS: Final = 50


def page_url(base_url: str, conn_id: str, queue: str | None = None, **more: str | None) -> str:
    """Return the address of a view of the page within Airflow's frame.

    `base_url`: Airflow's, as ``[api] base_url`` says it; empty where it stands at the root. `more`: what else the view
    is about, such as ``task`` or ``view``; None is left out.
    """
    base, path = base_url.rstrip("/"), urlsplit(base_url).path.rstrip("/")
    query = {"connection": conn_id, "queue": queue, **more}
    about = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{base}/plugin/{ROUTE}{path}{PREFIX}/?{about}"


def read_url(url: str) -> dict[str, str]:
    """Return what an address of the page is about, by the names that `page_url` takes."""
    return {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}
