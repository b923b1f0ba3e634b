"""One description for both APIs: a procedure, described as a verb, is a blocking method here and a coroutine there.

``pause = verb(configure.pause)`` in a class that both APIs inherit is all that it takes. Which of its two functions
an attribute is depends on the API that it is asked of, at run time and for type checkers; both show the procedure's
parameters (less the subject, which the API provides), its documentation and the verb's name.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from operator import itemgetter
from types import MethodType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

from ..core.claim.claim import ClaimRequest
from ..core.context import Claimed, Context
from ..core.protocol import Procedure
from ..errors import TransportError, ZkmqError
from ..zk.connection import CallDeadline, left
from ..zk.drivers import arun, run
from ..zk.session import Session
from .claim_handles import ClaimHandle, handed_over, handed_over_async

# --- The two kinds of API: objects whose calls block, and objects whose calls are awaited.

S = TypeVar("S")
T = TypeVar("T")
C = TypeVar("C")


class Api(Generic[S]):
    """An object whose calls are procedures on its subject, carried out over one session."""

    def __init__(self, session: Session, subject: S) -> None:
        self._session = session
        self._subject = subject

    def _explain(self, _: ZkmqError) -> Procedure[ZkmqError | None]:
        """After an error of a procedure on the subject: what callers are to see instead, if anything."""
        yield from ()
        return None

    def _mark_used(self) -> None:
        """Tasks are about to be enqueued or claimed. A queue overrides this: its client then takes part in clean-up."""


class SyncApi(Api[S]):
    """An API whose calls block the calling thread until they are carried out."""

    def _carry_out(self, call: Callable[[S], Procedure[T]], call_deadline: CallDeadline | None = None) -> T:
        """Carry out the procedure that `call` makes of the subject."""
        call_deadline = call_deadline or self._session.call_deadline()
        try:
            return run(self._session, call(self._subject), call_deadline)
        except TransportError:  # it says all there is to say; asking again could only be cut off
            raise
        except ZkmqError as error:
            better = run(self._session, self._explain(error), call_deadline)
            if better is None:
                raise
            raise better from error


class AsyncApi(Api[S]):
    """An API whose calls are coroutines; the event loop goes on meanwhile."""

    async def _carry_out(self, call: Callable[[S], Procedure[T]], call_deadline: CallDeadline | None = None) -> T:
        """Carry out the procedure that `call` makes of the subject."""
        call_deadline = call_deadline or self._session.call_deadline()
        try:
            return await arun(self._session, call(self._subject), call_deadline)
        except TransportError:  # it says all there is to say; asking again could only be cancelled
            raise
        except ZkmqError as error:
            better = await arun(self._session, self._explain(error), call_deadline)
            if better is None:
                raise
            raise better from error


class SyncClaiming(SyncApi[S], Generic[S, C]):
    """A blocking API that claims tasks and hands each over as a `C`."""

    @abstractmethod
    def _receive(self, context: Context, claimed: Claimed) -> C:
        """What the caller gets for a claim. May neither block nor fail."""

    def _take(
        self,
        make_request: Callable[[S], Procedure[ClaimRequest]],
        choose: Callable[[list[C]], T],
        call_deadline: CallDeadline | None = None,
    ) -> T:
        """Claim what is asked for; the caller gets what `choose` makes of the claims.

        After `deliver`, inside of `handed_over`, nothing may happen but returns: an interrupt of the calling thread is
        raised at the next call or end of a ``with`` block; one that fell there would lose a claim that the client does
        not remember any more.
        """
        call_deadline = call_deadline or self._session.call_deadline()
        request = run(self._session, make_request(self._subject), call_deadline)
        self._mark_used()
        receive = lambda claims: choose([self._receive(request.context, each) for each in claims])  # noqa: E731
        return handed_over(self._session, request, receive, call_deadline)


class AsyncClaiming(AsyncApi[S], Generic[S, C]):
    """An awaited API that claims tasks and hands each over as a `C`."""

    @abstractmethod
    def _receive(self, context: Context, claimed: Claimed) -> C:
        """What the caller gets for a claim. May not fail."""

    async def _take(
        self,
        make_request: Callable[[S], Procedure[ClaimRequest]],
        choose: Callable[[list[C]], T],
        call_deadline: CallDeadline | None = None,
    ) -> T:
        """Claim what is asked for. Cancelled, it gives back all that it took."""
        call_deadline = call_deadline or self._session.call_deadline()
        request = await arun(self._session, make_request(self._subject), call_deadline)
        self._mark_used()
        receive = lambda claims: choose([self._receive(request.context, each) for each in claims])  # noqa: E731
        return await handed_over_async(self._session, request, receive, call_deadline)


class SyncInTurn(SyncClaiming[S, C]):
    """A blocking API whose calls are carried out one after the other, from whichever threads they come.

    A call waits for its turn as long as it would for a server. Raises `Unavailable` past that: it has sent nothing.
    """

    def __init__(self, session: Session, subject: S) -> None:
        super().__init__(session, subject)
        self._turn = threading.RLock()

    def _carry_out(self, call: Callable[[S], Procedure[T]], call_deadline: CallDeadline | None = None) -> T:
        """Carry out the procedure that `call` makes of the subject, when it is this call's turn."""
        call_deadline = self._begin()
        try:
            return super()._carry_out(call, call_deadline)
        finally:
            self._turn.release()

    def _take(
        self,
        make_request: Callable[[S], Procedure[ClaimRequest]],
        choose: Callable[[list[C]], T],
        call_deadline: CallDeadline | None = None,
    ) -> T:
        """Claim what is asked for; the subject remembers it, so an interrupt after the handing over loses nothing."""
        call_deadline = self._begin()
        try:
            return super()._take(make_request, choose, call_deadline)
        finally:
            self._turn.release()

    def _begin(self) -> CallDeadline:
        call_deadline = self._session.call_deadline()
        call_deadline.begin()
        if not self._turn.acquire(timeout=left(call_deadline.deadline())):
            raise self._session.unavailable(call_deadline.limit)
        return call_deadline


class AsyncInTurn(AsyncClaiming[S, C]):
    """An awaited API whose calls are carried out one after the other, from whichever coroutines they come."""

    def __init__(self, session: Session, subject: S) -> None:
        super().__init__(session, subject)
        self._turn = asyncio.Lock()

    async def _carry_out(self, call: Callable[[S], Procedure[T]], call_deadline: CallDeadline | None = None) -> T:
        """Carry out the procedure that `call` makes of the subject, when it is this call's turn."""
        call_deadline = await self._begin()
        try:
            return await super()._carry_out(call, call_deadline)
        finally:
            self._turn.release()

    async def _take(
        self,
        make_request: Callable[[S], Procedure[ClaimRequest]],
        choose: Callable[[list[C]], T],
        call_deadline: CallDeadline | None = None,
    ) -> T:
        """Claim what is asked for, when it is this call's turn."""
        call_deadline = await self._begin()
        try:
            return await super()._take(make_request, choose, call_deadline)
        finally:
            self._turn.release()

    async def _begin(self) -> CallDeadline:
        call_deadline = self._session.call_deadline()
        call_deadline.begin()
        try:
            async with asyncio.timeout(left(call_deadline.deadline())):
                await self._turn.acquire()
        except TimeoutError:
            raise self._session.unavailable(call_deadline.limit) from None
        return call_deadline


# --- Verbs: one procedure is a blocking method of one API and a coroutine of the other.

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


class SyncAndAsync:
    """Two functions of one name: the blocking API's and the awaited one's. Subclasses say what their types are.

    `returns`: what the two are shown to return, instead of what their annotations say.
    """

    def __init__(self, sync: Callable[..., Any], awaited: Callable[..., Any], *returns: str) -> None:
        self.functions: Final = (sync, awaited)
        for function, text in zip(self.functions, returns, strict=bool(returns)):
            signature = inspect.signature(function).replace(return_annotation=text)
            function.__signature__ = signature  # type: ignore[attr-defined]

    def __set_name__(self, owner: type, name: str) -> None:
        for function in self.functions:
            function.__name__, function.__qualname__ = name, f"{owner.__qualname__}.{name}"

    def of(self, api: object, owner: type) -> Any:
        """The function of one API, bound where it is asked of an object."""
        function = self.functions[issubclass(owner, AsyncApi)]
        return function if api is None else MethodType(function, api)


class verb(SyncAndAsync, Generic[S, P, T]):  # noqa: N801  reads like a decorator
    """A procedure on an API's subject. `marks_used`: its queue takes part in clean-up from the first call on."""

    def __init__(self, procedure: Callable[Concatenate[S, P], Procedure[T]], *, marks_used: bool = False) -> None:
        def sync(self: SyncApi[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
            if marks_used:
                self._mark_used()
            return self._carry_out(lambda subject: procedure(subject, *args, **kwargs))

        async def awaited(self: AsyncApi[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
            if marks_used:
                self._mark_used()
            return await self._carry_out(lambda subject: procedure(subject, *args, **kwargs))

        super().__init__(shown(sync, procedure), shown(awaited, procedure))

    @overload
    def __get__(self, api: SyncApi[S], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, api: AsyncApi[S], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, api: None, owner: type[SyncApi[S]]) -> Callable[Concatenate[SyncApi[S], P], T]: ...
    @overload
    def __get__(
        self, api: None, owner: type[AsyncApi[S]]
    ) -> Callable[Concatenate[AsyncApi[S], P], Coroutine[Any, Any, T]]: ...
    def __get__(self, api: object, owner: type) -> Any:
        """The verb of an object, or of an API's class."""
        function = self.functions[issubclass(owner, AsyncApi)]
        return function if api is None else MethodType(function, api)


def first(claims: list[C]) -> C | None:
    """The one claim that was asked for, if there was one."""
    return claims[0] if claims else None


class claiming(SyncAndAsync, Generic[S, P]):  # noqa: N801  reads like a decorator
    """A procedure that asks for a claim; what the API makes of it is handed over to the caller, or given back.

    `returns`: what the blocking and the awaited one are shown to return.
    """

    choose: Callable[[list[Any]], Any] = staticmethod(first)
    """What the caller gets for what was claimed."""

    def __init__(self, make_request: Callable[Concatenate[S, P], Procedure[ClaimRequest]], *returns: str) -> None:
        choose = self.choose

        def sync(self: SyncClaiming[S, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return self._take(lambda subject: make_request(subject, *args, **kwargs), choose)

        async def awaited(self: AsyncClaiming[S, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return await self._take(lambda subject: make_request(subject, *args, **kwargs), choose)

        super().__init__(shown(sync, make_request), shown(awaited, make_request), *returns)

    @overload
    def __get__(self, api: SyncClaiming[S, C], owner: type) -> Callable[P, C | None]: ...
    @overload
    def __get__(self, api: AsyncClaiming[S, C], owner: type) -> Callable[P, Coroutine[Any, Any, C | None]]: ...
    @overload
    def __get__(self, api: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, api: object, owner: type) -> Any:
        """The verb of an object, or of an API's class."""
        return self.of(api, owner)


class claiming_many(claiming[S, P]):  # noqa: N801  reads like a decorator
    """`claiming` for a procedure that asks for several claims at once: the caller gets a list."""

    choose = list

    @overload  # type: ignore[override]  # the caller gets a list
    def __get__(self, api: SyncClaiming[S, C], owner: type) -> Callable[P, list[C]]: ...
    @overload
    def __get__(self, api: AsyncClaiming[S, C], owner: type) -> Callable[P, Coroutine[Any, Any, list[C]]]: ...
    @overload
    def __get__(self, api: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, api: object, owner: type) -> Any:
        """The verb of an object, or of an API's class."""
        return self.of(api, owner)


class claiming_one(claiming[S, P]):  # noqa: N801  reads like a decorator
    """`claiming` for a procedure that raises where there is no claim."""

    choose = itemgetter(0)

    @overload
    def __get__(self, api: SyncClaiming[S, C], owner: type) -> Callable[P, C]: ...
    @overload
    def __get__(self, api: AsyncClaiming[S, C], owner: type) -> Callable[P, Coroutine[Any, Any, C]]: ...
    @overload
    def __get__(self, api: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, api: object, owner: type) -> Any:
        """The verb of an object, or of an API's class."""
        return self.of(api, owner)


def settling(procedure: Callable[Concatenate[Context, Claimed, P], Procedure[T]]) -> verb[ClaimHandle, P, T]:
    """A procedure on a claim as a verb of claims."""

    def of_handle(handle: ClaimHandle, /, *args: P.args, **kwargs: P.kwargs) -> Procedure[T]:
        return procedure(handle.context, handle.claimed, *args, **kwargs)

    return verb(shown(of_handle, procedure, 2))


def shown(function: F, procedure: Callable[..., Any], taken: int = 1) -> F:
    """A function that shows a procedure's documentation, result and parameters, less the first `taken` ones."""
    signature, own = inspect.signature(procedure), inspect.signature(function)
    leading = [
        parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD, annotation=_annotation(parameter))
        for parameter in own.parameters.values()
        if parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    ]
    rest = list(signature.parameters.values())[taken:]
    functools.update_wrapper(function, procedure)
    signature = signature.replace(parameters=[*leading, *rest], return_annotation=_returned(signature))
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _annotation(parameter: inspect.Parameter) -> object:
    return parameter.empty if parameter.name == "self" else parameter.annotation


def _returned(signature: inspect.Signature) -> object:
    """What is returned at the end of a procedure; what a claim is handed over as depends on the API."""
    text = str(signature.return_annotation)
    if not text.startswith("Procedure["):
        return signature.return_annotation
    inner = text.removeprefix("Procedure[").removesuffix("]")
    return signature.empty if inner == ClaimRequest.__name__ else inner
