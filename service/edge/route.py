"""The class of every route: lets the caller in, reads bodies strictly, honours conditions and idempotency keys, and writes the
audit log.

    401, 403, 429 -> 415 -> Idempotency-Key -> the route itself -> If-None-Match -> audit log
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import Any, ClassVar, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from sqlalchemy import bindparam, insert
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as PlainRequest

from autosbp.errors import InputError, printable
from service.access.caller import Caller
from service.access.gate import check_scope
from service.body import BadBodyError, parse
from service.edge import replays
from service.edge.conditions import is_known
from service.edge.replays import Claim
from service.handlers import answer_to, storage_problem
from service.models import NO_TENANT, AuditRow, bound, now, table_of
from service.problems import ProblemError
from service.services._store import new_id
from service.state import OWN, Call, State
from service.tenancy import PARAMETER

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_log = logging.getLogger("service.edge")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_SAFE = ("GET", "HEAD")
_SLOW: set[Callable[..., Any]] = set()
_LARGE_BYTES = 2**16  # read within milliseconds
_MOST_MEMBERS = 4096
SCHEME = "key"
"""Name of the security scheme in the OpenAPI document."""

_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "Answer 304 where the resource's ETag is one of these.",
    "schema": {"type": "string"},
}


@dataclass(frozen=True, slots=True)
class _Visit:
    """One request on its way."""

    request: StrictRequest
    state: State
    call: Call
    claim: Claim | None = None


class GuardedRoute(APIRoute):
    """``needed``: scopes of which a caller must have one, by method; GET needs ``read`` unless it says otherwise. Routes of
    another kind know their callers by something else, or take other bodies."""

    needed: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        (method,) = options.get("methods") or ("GET",)
        if method in _SAFE and not iscoroutinefunction(endpoint) and endpoint not in _SLOW:
            endpoint = _quick(endpoint)
        security = [{SCHEME: [scope]} for scope in self._scopes(method)]
        options["openapi_extra"] = {**(options.get("openapi_extra") or {}), "security": security}
        if 304 in (options.get("responses") or {}):
            options["openapi_extra"] |= {"parameters": [_IF_NONE_MATCH]}
        super().__init__(path, endpoint, **options)

    @classmethod
    def _scopes(cls, method: str) -> tuple[str, ...]:
        return cls.needed.get(method) or (("read",) if method in _SAFE else cls.needed["POST"])

    def get_route_handler(self) -> Handler:
        """The framework's handler with everything around it."""
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            return await _serve(self, request, self._scopes(request.method), handler)

        return guarded

    @property
    def makes(self) -> bool:
        """Whether something new comes of it; what ends a job, or a key, is wanted on a full disk above all."""
        return bool({201, 202} & {self.status_code, *self.responses})

    def asks_database(self, request: PlainRequest, state: State) -> bool:
        """Whether ``admit`` would read the database."""
        return state.gate.asks_database(request.headers)

    def admit(self, request: PlainRequest, state: State, address: str) -> Caller:
        """Who calls; ``ProblemError`` 401, 403 or 429."""
        return state.gate.admit(request.headers, address)

    def check_post(self, request: PlainRequest) -> None:
        """415 for a body that is not JSON; a browser's form cannot send JSON without asking first."""
        check_coding(request)
        length = request.headers.get("content-length", "0" if "transfer-encoding" not in request.headers else "")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if length != "0" and kind != "application/json" and not kind.endswith("+json"):
            detail = f"the body's Content-Type is {kind or 'missing'}; application/json is expected"
            raise ProblemError(
                415, "media-type", "The body is not JSON", detail, headers={"accept": "application/json"}
            )


def check_coding(request: PlainRequest) -> None:
    """415 for a compressed body, which says what would do (RFC 9110, 12.5.3)."""
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        detail = f"the body's Content-Encoding is {coding}; bodies are expected as they are"
        raise ProblemError(
            415, "content-coding", "The body is compressed", detail, headers={"accept-encoding": "identity"}
        )


def slow(endpoint: Endpoint) -> Endpoint:
    """Mark a route that reads and takes long: it gets a thread on every database."""
    _SLOW.add(endpoint)
    return endpoint


def _quick(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """A route that reads a few rows."""

    @wraps(endpoint)
    async def quick(**arguments: Any) -> Any:
        return await arguments["state"].database.ask(endpoint, **arguments)

    quick.__signature__ = signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    return quick


def guarded(**needed: tuple[str, ...]) -> type[GuardedRoute]:
    """The class of routes that need these scopes, by method."""
    return type("Route", (GuardedRoute,), {"needed": needed})


def _of_few(document: Any) -> Any:
    """The framework copies the top members on the event loop, which takes a second for a million; no document has as many."""
    if isinstance(document, dict) and len(document) > _MOST_MEMBERS:
        raise InputError("body", f"{len(document)} members", f"at most {_MOST_MEMBERS} at the top are expected")
    return document


class StrictRequest(Request):
    """A request whose JSON is read by ``service.body.parse``. Of those with large bodies one is worked on at a time, until
    ``done``, so that their documents are not in memory at once."""

    _is_large = False

    async def json(self) -> Any:
        """The document, or ``BadBodyError``."""
        body, state = await self.body(), self.app.state.service
        limits = (state.settings.max_depth, state.settings.max_values)
        try:
            if len(body) <= _LARGE_BYTES:
                return parse(body, *limits)
            await state.large.acquire()
            self._is_large = True
            return _of_few(await run_in_threadpool(parse, body, *limits))
        except InputError as error:
            raise BadBodyError(error) from None

    def done(self) -> None:
        """Let others go on."""
        if self._is_large:
            self._is_large = False
            self.app.state.service.large.release()


async def _serve(route: GuardedRoute, plain: Request, needed: tuple[str, ...], handler: Handler) -> Response:
    state: State = plain.app.state.service
    try:
        visit = await _admitted(route, plain, state, needed)
    except _RefusedError as refused:
        await state.database.tell(_write, state, None, None, refused.entry)
        raise refused.refusal from None
    request = visit.request
    try:
        if request.method in _SAFE:
            return _unless_known(request, await handler(request))
        route.check_post(request)
        _check_places(state)
        if route.makes:
            _check_room(state)
        answer = await _once(visit, handler)
        _check_places(state)  # it may have gone meanwhile
    except Exception as error:
        if request.method not in _SAFE:
            await state.database.tell(_conclude, visit, answer_to(error, request.url.path))
        raise
    finally:
        request.done()
    return answer


def _check_places(state: State) -> None:
    """503 where what would be stored would be lost."""
    if (ailment := state.places.ailment()) is not None:
        raise ProblemError(503, "storage-unavailable", "The storage cannot be used now", ailment)


def _check_room(state: State) -> None:
    """507 or 503 where what jobs leave could not be kept."""
    if (error := state.places.unwritable()) is not None:
        _log.warning("nothing can be written to the folder of artifacts: %s", error)
        detail = "nothing can be written to the folder of artifacts; try again later"
        unavailable = ProblemError(503, "storage-unavailable", "The storage cannot be used now", detail)
        raise storage_problem(error) or unavailable


class _RefusedError(Exception):
    """A caller was not let in, which the audit log says."""

    def __init__(self, refusal: ProblemError, entry: _Entry) -> None:
        self.refusal, self.entry = refusal, entry
        super().__init__()


async def _admitted(route: GuardedRoute, plain: Request, state: State, needed: tuple[str, ...]) -> _Visit:
    """Let the caller in, or refuse it."""
    address = plain.client.host if plain.client else ""
    identity = plain.scope.get("request_id", "-")
    caller = None
    try:
        if route.asks_database(plain, state):
            caller = await state.database.ask(route.admit, plain, state, address)
        else:
            caller = route.admit(plain, state, address)
        check_scope(caller, needed)
    except ProblemError as refusal:
        status = refusal.status
        if status in (401, 403) and (caller is not None or state.gate.is_noted(address, status)):
            tenant, key = (caller.tenant, caller.key_id) if caller else (NO_TENANT, None)
            entry = _entry(plain, tenant, key, address, identity, status)
            raise _RefusedError(refusal, entry) from None
        raise
    key = plain.headers.get("idempotency-key") if plain.method == "POST" else None
    call = Call(caller, identity, plain.url.path, None if key is None else replays.check_key(key))
    own = plain.scope[OWN] = state.of(call)
    return _Visit(StrictRequest(plain.scope, plain.receive), own, call)


async def _once(visit: _Visit, handler: Handler) -> Response:
    """The route's answer, or the one that is stored under the request's key."""
    key, request, database = visit.call.key, visit.request, visit.state.database
    if key is None:
        answer = await handler(request)
        await database.tell(_conclude, visit, answer)
        return answer
    body = await request.body()
    print_ = replays.fingerprint(request.method, request.url.path, request.url.query, body)
    asked = (database, key, print_, visit.state.settings.idempotency_ttl_s)
    taken: Claim | Response | None = await database.tell(replays.take, *asked)
    if taken is None:
        taken = await run_in_threadpool(replays.take_over, *asked)
    if isinstance(taken, Response):
        visit.state.metrics.reused.labels("idempotency-key").inc()
        await database.tell(_conclude, visit, taken)
        return taken
    held = replace(visit, claim=taken)
    try:
        answer = await handler(request)
    except Exception:
        await database.tell(_write, visit.state, taken, None, None)
        raise
    await database.tell(_conclude, held, answer)
    return answer


def _unless_known(request: Request, response: Response) -> Response:
    """304 where the client has what the response shows."""
    tag = response.headers.get("etag")
    if response.status_code != 200 or tag is None or not is_known(request.headers.get("if-none-match"), tag):
        return response
    return Response(status_code=304, headers={"etag": tag})


def _conclude(visit: _Visit, answer: Response) -> None:
    """Note in the audit log what was answered, and keep the answer where the request had a key."""
    caller, call = visit.call.caller, visit.call
    entry = _entry(visit.request, caller.tenant, caller.key_id, caller.address, call.request_id, answer.status_code)
    _write(visit.state, visit.claim, answer, replace(entry, location=answer.headers.get("location")))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the audit log."""

    tenant: str
    caller: str | None
    address: str
    method: str
    path: str
    status: int
    request_id: str
    location: str | None = None

    def values(self) -> dict[str, object]:
        """Of ``_NOTE``'s parameters but the tenant."""
        return {
            "noted_id": new_id("aud"),
            "noted_created_at": now(),
            "noted_caller": self.caller,
            "noted_address": _ascii(self.address)[:64],
            "noted_method": _ascii(self.method)[:16],
            "noted_path": _ascii(self.path)[:512],
            "noted_status": self.status,
            "noted_request_id": self.request_id,
            "noted_location": self.location,
        }


def _ascii(text: str) -> str:
    """What a stranger sent, for any log."""
    return printable(text).encode("ascii", "backslashreplace").decode()


_audit = table_of(AuditRow)
_NOTE = insert(_audit).values({**bound(_audit, "noted_"), "tenant": bindparam(PARAMETER)})


def _entry(request: PlainRequest, tenant: str, key_id: str | None, address: str, identity: str, status: int) -> _Entry:
    return _Entry(tenant, key_id, address, request.method, request.url.path, status, identity)


async def note(
    request: PlainRequest, state: State, status: int, tenant: str = NO_TENANT, key_id: str | None = None
) -> None:
    """Write a call of a route of another class in the audit log."""
    address = request.client.host if request.client else ""
    entry = _entry(request, tenant, key_id, address, request.scope.get("request_id", "-"), status)
    await state.database.tell(_write, state, None, None, entry)


def _write(state: State, claim: Claim | None, answer: Response | None, entry: _Entry | None) -> None:
    """The work is done or refused by now: that the log cannot be written does not change the answer."""
    database = state.database if entry is None else state.database.of(entry.tenant)
    statements = [] if claim is None else [replays.settling(claim, answer)]
    if entry is not None:
        statements.append((_NOTE, entry.values()))
    try:
        database.execute(*statements)
    except SQLAlchemyError as error:
        _log.error("an answer was not written to the audit log: %s", error)
