"""The page's app, which Airflow's api-server mounts: who is asked for is asked of Airflow, on every route."""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import resources
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api import security
from airflow.configuration import conf
from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from ..engine import ConfigError, QueueNotFound, TaskNotFound, ZkmqError
from . import access, actions, instances, views
from .days import days_of
from .live import ANSWER_SECONDS, Live

T = TypeVar("T")
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: The files of the page, by the kinds that browsers are told.
_FILES: Final = {
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "LICENSES.txt": "text/plain; charset=utf-8",
}
#: Neither a proxy nor Airflow's own compression may hold back what is streamed.
_STREAMED: Final = {"X-Accel-Buffering": "no", "Content-Encoding": "identity"}
#: The audit log names so many tasks of an action.
_NOTED: Final = 50
_Name = Annotated[str, Query(min_length=1, max_length=128)]
_Text = Annotated[str | None, Query(max_length=4_096)]


def make_app() -> FastAPI:
    """The app, with its own memory of connections."""
    app = FastAPI(title="Queues on ZooKeeper", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.lives = {}
    app.include_router(_PAGE)
    app.include_router(_READING)
    app.include_router(_ACTING)
    app.middleware("http")(_with_headers)
    for kind, code in ((access.UnknownConnection, 404), (QueueNotFound, 404), (TaskNotFound, 404), (ConfigError, 400)):
        app.exception_handler(kind)(partial(_error_response, code))
    app.exception_handler(ZkmqError)(partial(_error_response, 503))
    app.exception_handler(RequestValidationError)(_refusal)
    atexit.register(stop, app)
    return app


def stop(app: FastAPI) -> None:
    """End the sessions of all connections."""
    lives, until = list(app.state.lives.values()), time.monotonic() + ANSWER_SECONDS * 2
    for live in lives:
        live.stop(0)
    for live in lives:
        live.stop(max(0.0, until - time.monotonic()))


async def _with_headers(request: Request, call_next: Callable[[Request], Any]) -> Response:
    response: Response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _error_response(code: int, _request: Request, error: Exception) -> JSONResponse:
    fact = getattr(error, "fact", None)  # of a missing queue, without the methods that would create it
    return JSONResponse({"detail": fact or str(error)}, status_code=code)


async def _refusal(_request: Request, error: RequestValidationError) -> JSONResponse:
    """What is wrong with a request, without what was sent: it may be large, or no text."""
    return JSONResponse({"detail": [{"loc": each["loc"], "msg": each["msg"]} for each in error.errors()]}, 422)


def _live(request: Request, connection_id: str) -> Live:
    """What is known of a connection. Raises `UnknownConnection`."""
    lives: dict[str, Live] = request.app.state.lives
    live = lives.get(connection_id)
    if live is None:
        access.options_of(connection_id)
        live = lives.setdefault(connection_id, Live(connection_id))
    return live


LiveDep = Annotated[Live, Depends(_live)]


# --- The page itself.

_PAGE: Final = APIRouter()


@_PAGE.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """The page; whoever is not logged in is sent to Airflow's login and comes back."""
    try:
        await _user(request)
    except HTTPException:
        login = get_auth_manager().get_url_login(next_url=str(request.url))
        return RedirectResponse(login, status_code=302)
    return Response(_file("index.html"), media_type="text/html; charset=utf-8")


async def _user(request: Request) -> Any:
    """Who asks, as Airflow knows it. Raises `HTTPException` where that is nobody."""
    return await security.get_user(request, None, await security.bearer_scheme(request))


@_PAGE.get("/static/{name}", include_in_schema=False)
async def static(name: str, _user: security.GetUserDep) -> Response:
    """A file of the page."""
    if name not in _FILES:
        raise HTTPException(404, "there is no such file")
    return Response(_file(name), media_type=_FILES[name], headers={"Cache-Control": "private, no-cache"})


def _file(name: str) -> bytes:
    return resources.files(__package__ or "").joinpath("static", name).read_bytes()


@_PAGE.get("/api/connections")
def connections(user: security.GetUserDep) -> dict[str, Any]:
    """The connections that the user may read, and whether he may act on their queues."""
    may_act = set(access.connections(user, "PUT"))
    shown = [{"id": name, "may_act": name in may_act} for name in access.connections(user)]
    return {"user": user.get_name(), "connections": shown}


@_PAGE.get("/api/instance", dependencies=[Depends(security.requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))])
def instance(
    user: security.GetUserDep,
    request: Request,
    dag_id: Annotated[str, Query(max_length=250)],
    run_id: Annotated[str, Query(max_length=250)],
    task_id: Annotated[str, Query(max_length=250)],
    map_index: Annotated[str, Query(max_length=20)] = "-1",
) -> dict[str, Any]:
    """The tasks of queues that an Airflow task instance enqueued, waited for or settled, as far as he may see them.

    `map_index`: no number, as Airflow's frame leaves it, where the task is not mapped.
    """
    readable = set(access.connections(user))
    mapped = int(map_index) if map_index.isdecimal() and len(map_index) < 10 else -1
    return instances.tasks_of(partial(_live, request), readable, (dag_id, run_id, task_id, mapped))


# --- Reading a connection.

_READING: Final = APIRouter(
    prefix="/api/connections/{connection_id}", dependencies=[Depends(security.requires_access_connection("GET"))]
)


@_READING.get("/events")
async def events(live: LiveDep) -> StreamingResponse:
    """How the queues stand, and each change of it."""

    async def stream() -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        async for event in live.events():
            yield event

    return StreamingResponse(stream(), media_type="text/event-stream", headers=_STREAMED)


@_READING.get("/queues")
def queues(live: LiveDep) -> dict[str, Any]:
    """How the queues stand."""
    return live.snapshot()


@_READING.get("/queue")
def queue(live: LiveDep, queue: _Name) -> dict[str, Any]:
    """One queue."""
    return _read(live, ("queue", queue), lambda: views.queue_view(live, queue))


@_READING.get("/days")
def days(live: LiveDep, queue: _Name) -> dict[str, Any]:
    """What ended in a queue on each of the last days."""
    rows, note = _read(live, ("days", queue), lambda: days_of(live.queue(queue)))
    return {"days": rows, "note": note}


@_READING.get("/tasks")
def tasks(
    live: LiveDep,
    queue: _Name,
    state: _Text = None,
    selector: _Text = None,
    error: _Text = None,
    kind: _Text = None,
    id: _Text = None,  # noqa: A002  the parameter's name
    batch: _Text = None,
    older: _Text = None,
    cursor: _Text = None,
) -> dict[str, Any]:
    """A page of a queue's tasks."""
    values = {"state": state, "selector": selector, "error": error, "kind": kind, "id": id, "batch": batch}
    wanted = {name: value or None for name, value in {**values, "older": older}.items()}
    key = ("tasks", queue, *wanted.values(), cursor)
    return _read(live, key, lambda: views.tasks_view(live.queue(queue), wanted, cursor or None))


@_READING.get("/errors")
def errors(live: LiveDep, queue: _Name) -> dict[str, Any]:
    """A queue's dead letters by their errors."""
    return _read(live, ("errors", queue), lambda: views.errors_view(live.queue(queue)))


@_READING.get("/task")
def task(live: LiveDep, user: security.GetUserDep, queue: _Name, task: _Name) -> dict[str, Any]:
    """A task's story, with the runs of the user's DAGs that dealt with it."""
    story = _read(live, ("task", queue, task), lambda: views.task_view(live.queue(queue), task))
    may_read = partial(access.may_read_instances, user)
    return story | {"links": instances.links_of(live, may_read, queue, story["task"])}


@_READING.get("/payload")
def payload(live: LiveDep, queue: _Name, task: _Name, part: str = "data") -> Response:
    """A task's payload or result as a file, of which no browser makes anything."""
    found = live.queue(queue).task(task)
    data = {"data": found.data, "result": found.result}.get(part)
    if data is None:
        raise HTTPException(404, f"the task has no {part if part in {'data', 'result'} else 'such part'}")
    name = f'attachment; filename="{task}.{part}"'
    return Response(data, media_type="application/octet-stream", headers={"Content-Disposition": name})


def _read(live: Live, key: tuple[Any, ...], read: Callable[[], T]) -> T:
    shared: T = live.shared(key, read)
    return shared


# --- Acting.


def _same_origin(request: Request) -> None:
    """Refuse what another site has a browser send. Raises `HTTPException`."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers say by themselves where a request comes from; older ones name the origin, and programs neither.
    foreign = site != "same-origin" if site is not None else origin is not None and _host(origin) not in _hosts(request)
    if foreign or kind != "application/json":
        raise HTTPException(403, "only this page may ask for that: behind a proxy, [api] base_url must be its address")


def _hosts(request: Request) -> set[str]:
    """The hosts at which this server is known to browsers."""
    named = [request.headers.get("host", ""), *request.headers.get("x-forwarded-host", "").split(",")]
    urls = [
        str(request.base_url),
        conf.get("api", "base_url", fallback=None) or "",
        *(f"//{name.strip()}" for name in named),
    ]
    return {_host(url) for url in urls} - {""}


def _host(url: str) -> str:
    """The host of an address, with its port if that is not the usual one; empty for what is no address."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return parts.netloc.lower().removesuffix(":443" if parts.scheme == "https" else ":80")


_ACTING: Final = APIRouter(
    prefix="/api/connections/{connection_id}",
    dependencies=[
        Depends(security.requires_access_connection("GET")),
        Depends(security.requires_access_connection("PUT")),
        Depends(_same_origin),
    ],
)


@_ACTING.post("/actions")
def act(live: LiveDep, user: security.GetUserDep, wanted: actions.Action) -> StreamingResponse:
    """Do something to tasks or to a queue; a line of JSON for each group of tasks tells how far it is."""
    lines = actions.carry_out(live.queue(wanted.queue), wanted)
    _note(user.get_name(), live.name, wanted)  # not before: what is refused is not done
    return StreamingResponse(lines, media_type="application/x-ndjson", headers=_STREAMED)


def _note(user: str, conn_id: str, wanted: actions.Action) -> None:
    """Note in Airflow's audit log what somebody does, of very many tasks the first."""
    what = {"connection_id": conn_id, **wanted.model_dump(exclude_none=True)}
    if wanted.tasks:
        what |= {"tasks": wanted.tasks[:_NOTED], "count": len(wanted.tasks)}
    with create_session() as session:
        session.add(Log("zkmq.action", owner=user, owner_display_name=user, extra=json.dumps(what)))
