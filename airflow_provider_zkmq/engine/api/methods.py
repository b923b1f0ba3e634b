"""One description for both APIs: a procedure, described as a verb, is a blocking method here and a coroutine there.

``pause = verb(configure.pause)`` in a class that both APIs inherit is all that it takes. Which of its two functions
an attribute is depends on the API that it is asked of, at run time and for type checkers; both show the procedure's
parameters (less the subject, which the API provides), its documentation and the verb's name.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, TypeVar, overload

from ..core.claim.claim import ClaimRequest
from ..core.context import Claimed, Context
from ..core.protocol import Procedure
from ..errors import TransportError, ZkmqError
from ..zk.connection import CallDeadline
from ..zk.drivers import arun, run
from ..zk.session import Session
from .claim_handles import ClaimHandle, handed_over, handed_over_async

S = TypeVar("S")
T = TypeVar("T")
C = TypeVar("C")
Requests: TypeAlias = Callable[[S], Procedure[ClaimRequest]]
Choosing: TypeAlias = Callable[[list[C]], T]


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

    def _take(self, make_request: Requests[S], choose: Choosing[C, T], call_deadline: CallDeadline | None = None) -> T:
        """Claim what is asked for; the caller gets what `choose` makes of the claims.

        After `deliver`, inside of `handed_over`, nothing may happen but returns: an interrupt is raised at the next
        call or end of a ``with`` block, and would lose a claim that the client does not remember any more.
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
        self, make_request: Requests[S], choose: Choosing[C, T], call_deadline: CallDeadline | None = None
    ) -> T:
        """Claim what is asked for. Cancelled, it gives back all that it took."""
        call_deadline = call_deadline or self._session.call_deadline()
        request = await arun(self._session, make_request(self._subject), call_deadline)
        self._mark_used()
        receive = lambda claims: choose([self._receive(request.context, each) for each in claims])  # noqa: E731
        return await handed_over_async(self._session, request, receive, call_deadline)


# --- Verbs: one procedure is a blocking method of one API and a coroutine of the other.

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
F = TypeVar("F", bound=Callable[..., Any])


class SyncAndAsync(Generic[S, P, A, B]):
    """Two functions of one name: the blocking API's, which returns an `A`, and the awaited one's, a `B`."""

    def __init__(self, sync: Callable[..., Any], awaited: Callable[..., Any]) -> None:
        self.functions: Final = (sync, awaited)

    def __set_name__(self, owner: type, name: str) -> None:
        for function in self.functions:
            function.__name__, function.__qualname__ = name, f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, api: SyncApi[S], owner: type) -> Callable[P, A]: ...
    @overload
    def __get__(self, api: AsyncApi[S], owner: type) -> Callable[P, B]: ...
    @overload
    def __get__(self, api: None, owner: type[SyncApi[S]]) -> Callable[Concatenate[SyncApi[S], P], A]: ...
    @overload
    def __get__(self, api: None, owner: type[AsyncApi[S]]) -> Callable[Concatenate[AsyncApi[S], P], B]: ...
    def __get__(self, api: object, owner: type) -> Any:
        """The function of one API, bound where it is asked of an object."""
        function = self.functions[issubclass(owner, AsyncApi)]
        return function if api is None else MethodType(function, api)


def verb(
    procedure: Callable[Concatenate[S, P], Procedure[T]], *, marks_used: bool = False
) -> SyncAndAsync[S, P, T, Coroutine[Any, Any, T]]:
    """A procedure on an API's subject. `marks_used`: its queue takes part in clean-up from the first call on."""

    def sync(self: SyncApi[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if marks_used:
            self._mark_used()
        return self._carry_out(lambda subject: procedure(subject, *args, **kwargs))

    async def awaited(self: AsyncApi[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if marks_used:
            self._mark_used()
        return await self._carry_out(lambda subject: procedure(subject, *args, **kwargs))

    return SyncAndAsync(shown(sync, procedure), shown(awaited, procedure))


def claiming(
    make_request: Callable[Concatenate[S, P], Procedure[ClaimRequest]],
    returns: str,
    choose: Callable[[list[Any]], Any] = lambda claims: claims[0] if claims else None,
) -> SyncAndAsync[S, P, Any, Any]:
    """A procedure that asks for claims; what `choose` makes of them is handed over to the caller, or given back."""

    def sync(self: SyncClaiming[S, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._take(lambda subject: make_request(subject, *args, **kwargs), choose)

    async def awaited(self: AsyncClaiming[S, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return await self._take(lambda subject: make_request(subject, *args, **kwargs), choose)

    shown(awaited, make_request, returns=returns.replace("Claim", "AsyncClaim"))
    return SyncAndAsync(shown(sync, make_request, returns=returns), awaited)


def settling(
    procedure: Callable[Concatenate[Context, Claimed, P], Procedure[T]],
) -> SyncAndAsync[ClaimHandle, P, T, Coroutine[Any, Any, T]]:
    """A procedure on a claim as a verb of claims."""

    def of_handle(handle: ClaimHandle, /, *args: P.args, **kwargs: P.kwargs) -> Procedure[T]:
        return procedure(handle.context, handle.claimed, *args, **kwargs)

    return verb(shown(of_handle, procedure, 2))


def shown(function: F, procedure: Callable[..., Any], taken: int = 1, returns: str | None = None) -> F:
    """A function that shows a procedure's documentation, result and parameters, less the first `taken` ones.

    `returns`: what it is shown to return instead.
    """
    signature, own = inspect.signature(procedure), inspect.signature(function)
    leading = [
        parameter.replace(
            kind=parameter.POSITIONAL_OR_KEYWORD,
            annotation=parameter.empty if parameter.name == "self" else parameter.annotation,
        )
        for parameter in own.parameters.values()
        if parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    ]
    rest = list(signature.parameters.values())[taken:]
    returned: object = returns or signature.return_annotation
    if str(returned).startswith("Procedure["):  # what it returns at its end
        returned = str(returned).removeprefix("Procedure[").removesuffix("]")
    functools.update_wrapper(function, procedure)
    signature = signature.replace(parameters=[*leading, *rest], return_annotation=returned)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function
