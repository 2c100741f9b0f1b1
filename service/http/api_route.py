"""The class of authenticated routes: caller, strict bodies, conditional requests, idempotency keys, audit log.

Order of the checks:

    401, 403, 429 -> 415 -> Idempotency-Key -> the route itself -> If-None-Match -> audit log
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from inspect import iscoroutinefunction, signature
from typing import Any, ClassVar, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from sqlalchemy import bindparam, insert
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as PlainRequest

from autosbp.errors import InputError, printable
from autosbp.service.auth.authentication import check_scope
from autosbp.service.auth.caller import Caller
from autosbp.service.error_handlers import error_response, storage_problem
from autosbp.service.http import idempotency
from autosbp.service.http.etags import matches_if_none_match
from autosbp.service.http.idempotency import KeyClaim
from autosbp.service.http.query_parameters import check_query, query_names
from autosbp.service.models import NO_TENANT, AuditRow, bind_parameters, now, table_of
from autosbp.service.problem_details import ProblemError
from autosbp.service.request_limits import SMALL_BODY_BYTES, RequestBody
from autosbp.service.request_state import STATE_KEY, AppState, RequestCall
from autosbp.service.services._queries import new_id
from autosbp.service.settings import Settings
from autosbp.service.strict_json import BadBodyError, parse
from autosbp.service.tenancy import TENANT_PARAMETER

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_log = logging.getLogger("autosbp.service.http")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_SAFE = ("GET", "HEAD")
_THREAD_ENDPOINTS: set[Callable[..., Any]] = set()
_CAPTURE_THREAD_ENDPOINTS: set[Callable[..., Any]] = set()
_BODY_BYTES: dict[Callable[..., Any], int | None] = {}
_LARGE_BODY_BYTES = 2**16  # smaller bodies parse within milliseconds
_MAX_TOP_LEVEL_MEMBERS = 4096
SCHEME = "key"
"""Name of the security scheme in the OpenAPI document."""

_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "Answer 304 if the resource's ETag is one of these.",
    "schema": {"type": "string"},
}


@dataclass(frozen=True, slots=True)
class _AdmittedRequest:
    """One admitted request: request, its state, its call, and the claim on its idempotency key."""

    request: StrictRequest
    state: AppState
    call: RequestCall
    claim: KeyClaim | None = None


class GuardedRoute(APIRoute):
    """A route that authenticates its caller. A route's operation id in the OpenAPI document is its function's name.

    Subclasses may authenticate callers in another way or take other bodies.

    Attributes:
        needed: scopes by method, of which a caller must have one; GET and HEAD need ``read`` unless they are listed,
            other unlisted methods what POST needs.
        strict: whether to refuse unknown query parameters.
    """

    needed: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    strict: ClassVar[bool] = True

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        (method,) = options.get("methods") or ("GET",)
        if method in _SAFE and not iscoroutinefunction(endpoint) and endpoint not in _THREAD_ENDPOINTS:
            served = _on_event_loop(endpoint)
        elif endpoint in _CAPTURE_THREAD_ENDPOINTS:
            served = _run_in_capture_threads(endpoint)
        else:
            served = endpoint
        self._body_bytes = _BODY_BYTES.get(endpoint, SMALL_BODY_BYTES)
        security = [{SCHEME: [scope]} for scope in self._scopes(method)]
        options["openapi_extra"] = {**(options.get("openapi_extra") or {}), "security": security}
        if 304 in (options.get("responses") or {}):
            options["openapi_extra"] |= {"parameters": [_IF_NONE_MATCH]}
        super().__init__(path, served, **{**options, "operation_id": endpoint.__name__})
        self.query = query_names(self.dependant)

    @classmethod
    def _scopes(cls, method: str) -> tuple[str, ...]:
        return cls.needed.get(method) or (("read",) if method in _SAFE else cls.needed["POST"])

    def get_route_handler(self) -> Handler:
        """Wrap the framework's handler with the checks of this class."""
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            return await _serve(self, request, self._scopes(request.method), handler)

        return guarded

    @property
    def creates_resource(self) -> bool:
        """Whether the route creates something. Other routes, which cancel jobs or revoke keys, must work on a full disk."""
        return bool({201, 202} & {self.status_code, *self.responses})

    def max_body_bytes(self, settings: Settings) -> int:
        """Limit of the body in bytes; larger ones are answered with 413."""
        return settings.max_body_bytes if self._body_bytes is None else min(self._body_bytes, settings.max_body_bytes)

    def asks_database(self, request: PlainRequest, state: AppState) -> bool:
        """Whether ``admit`` would read the database."""
        return state.gate.needs_database(request.headers)

    def admit(self, request: PlainRequest, state: AppState, address: str) -> Caller:
        """Return the caller; raise ``ProblemError`` 401, 403 or 429."""
        return state.gate.authenticate(request.headers, address)

    def check_post(self, request: PlainRequest) -> None:
        """Raise 415 for a body that is not JSON; a browser's form cannot send JSON without a CORS preflight."""
        check_coding(request)
        length = request.headers.get("content-length", "0" if "transfer-encoding" not in request.headers else "")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if length != "0" and kind != "application/json" and not kind.endswith("+json"):
            detail = f"the body's Content-Type is {kind or 'missing'}; expected application/json"
            raise ProblemError(
                415, "media-type", "The body is not JSON", detail, headers={"accept": "application/json"}
            )


def check_coding(request: PlainRequest) -> None:
    """Raise 415 for a compressed body, naming the accepted coding (RFC 9110, 12.5.3)."""
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        detail = f"the body's Content-Encoding is {coding}; send the body uncompressed"
        raise ProblemError(
            415, "content-coding", "The body is compressed", detail, headers={"accept-encoding": "identity"}
        )


def in_thread(endpoint: Endpoint) -> Endpoint:
    """Mark a GET route that takes long: it runs in a thread, whatever the database."""
    _THREAD_ENDPOINTS.add(endpoint)
    return endpoint


def in_capture_threads(endpoint: Endpoint) -> Endpoint:
    """Mark a route that reads models, which takes long: it runs in threads of its own (``AppState.captures``)."""
    _CAPTURE_THREAD_ENDPOINTS.add(endpoint)
    return endpoint


def max_body(most: int | None) -> Callable[[Endpoint], Endpoint]:
    """Set the largest body that a route takes; None for the limit of the settings."""

    def marked(endpoint: Endpoint) -> Endpoint:
        _BODY_BYTES[endpoint] = most
        return endpoint

    return marked


def _on_event_loop(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Run a GET route that reads a few rows on the event loop."""

    @wraps(endpoint)
    async def quick(**arguments: Any) -> Any:
        return await arguments["state"].database.run_read(endpoint, **arguments)

    return _with_signature(quick, endpoint)


def _run_in_capture_threads(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Run a route in the threads for models."""

    @wraps(endpoint)
    async def served(**arguments: Any) -> Any:
        state: AppState = arguments["state"]
        return await state.capture_threads.run(state.call.caller.tenant, partial(endpoint, **arguments))

    return _with_signature(served, endpoint)


def _with_signature(served: Callable[..., Any], endpoint: Callable[..., Any]) -> Callable[..., Any]:
    served.__signature__ = signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    return served


def make_route_class(**needed: tuple[str, ...]) -> type[GuardedRoute]:
    """Create a route class that needs these scopes, by method."""
    return type("Route", (GuardedRoute,), {"needed": needed})


def _limit_members(document: Any) -> Any:
    """Limit the top-level members: the framework copies them on the event loop, which takes 1 s for a million."""
    if isinstance(document, dict) and len(document) > _MAX_TOP_LEVEL_MEMBERS:
        raise InputError(
            "body", f"{len(document)} members", f"expected at most {_MAX_TOP_LEVEL_MEMBERS} top-level members"
        )
    return document


class StrictRequest(Request):
    """A request whose JSON ``autosbp.service.strict_json.parse`` reads.

    Requests with large bodies are processed one at a time, until ``done``, so that only one such document is in memory.
    ``autosbp.service.request_limits`` limits bodies that are received meanwhile.
    """

    _is_large = False

    async def body(self) -> bytes:
        """Read the whole body, in memory once; the framework would hold the parts next to the joined body."""
        if not hasattr(self, "_body"):
            body = bytearray()
            async for part in self.stream():
                body += part
            self._body: bytes = body  # type: ignore[assignment]
        return self._body

    async def json(self) -> Any:
        """Parse the body; raise ``BadBodyError``."""
        body, state = await self.body(), self.app.state.service
        limits = (state.settings.max_depth, state.settings.max_values)
        try:
            if len(body) <= _LARGE_BODY_BYTES:
                return parse(body, *limits)
            await state.large.acquire()
            self._is_large = True
            return _limit_members(await run_in_threadpool(parse, body, *limits))
        except InputError as error:
            raise BadBodyError(error) from None

    def done(self) -> None:
        """Let the next request with a large body proceed."""
        if self._is_large:
            self._is_large = False
            self.app.state.service.large.release()


async def _serve(route: GuardedRoute, plain: Request, needed: tuple[str, ...], handler: Handler) -> Response:
    state: AppState = plain.app.state.service
    try:
        visit = await _authenticate(route, plain, state, needed)
    except _RefusedError as refused:
        await state.database.tell(_write, state, None, None, refused.entry)
        raise refused.refusal from None
    request = visit.request
    try:
        if route.strict:
            check_query(route.query, request)
        if request.method in _SAFE:
            return _not_modified_or(request, await handler(request))
        route.check_post(request)
        RequestBody.of(plain.scope).allow(route.max_body_bytes(state.settings), visit.call.caller.tenant)
        _check_storage_place(state)
        if route.creates_resource:
            _check_artifact_storage(state)
        answer = await _run_once_per_key(visit, handler)
        _check_storage_place(state)  # the storage may have disappeared meanwhile
    except Exception as error:
        if request.method not in _SAFE:
            await state.database.tell(_record_answer, visit, error_response(error, request.url.path))
        raise
    finally:
        request.done()
    return answer


def _check_storage_place(state: AppState) -> None:
    """Raise 503 if the storage has moved, so that stored data would be lost."""
    if (ailment := state.places.misplaced_storage()) is not None:
        raise ProblemError(503, "storage-unavailable", "The storage cannot be used now", ailment)


def _check_artifact_storage(state: AppState) -> None:
    """Raise 507 or 503 if the artifact folder is not writable."""
    if (error := state.places.write_error()) is not None:
        _log.warning("the artifacts folder is not writable: %s", error)
        detail = "the artifacts folder is not writable; try again later"
        unavailable = ProblemError(503, "storage-unavailable", "The storage cannot be used now", detail)
        raise storage_problem(error) or unavailable


class _RefusedError(Exception):
    """A caller was refused; carries the entry for the audit log."""

    def __init__(self, refusal: ProblemError, entry: _AuditEntry) -> None:
        self.refusal, self.entry = refusal, entry
        super().__init__()


async def _authenticate(
    route: GuardedRoute, plain: Request, state: AppState, needed: tuple[str, ...]
) -> _AdmittedRequest:
    """Authenticate the caller and check its scopes, or raise the refusal."""
    address = plain.client.host if plain.client else ""
    identity = plain.scope.get("request_id", "-")
    caller = None
    try:
        if route.asks_database(plain, state):
            caller = await state.database.run_read(route.admit, plain, state, address)
        else:
            caller = route.admit(plain, state, address)
        check_scope(caller, needed)
    except ProblemError as refusal:
        status = refusal.status
        if status in (401, 403) and (caller is not None or state.gate.should_audit(address, status)):
            tenant, key = (caller.tenant, caller.key_id) if caller else (NO_TENANT, None)
            entry = _entry(plain, tenant, key, address, identity, status)
            raise _RefusedError(refusal, entry) from None
        raise
    key = plain.headers.get("idempotency-key") if plain.method == "POST" else None
    call = RequestCall(caller, identity, plain.url.path, None if key is None else idempotency.check_key(key))
    own = plain.scope[STATE_KEY] = state.of(call)
    return _AdmittedRequest(StrictRequest(plain.scope, plain.receive), own, call)


async def _run_once_per_key(visit: _AdmittedRequest, handler: Handler) -> Response:
    """Run the route once per idempotency key, or return the answer stored under the key."""
    key, request, database = visit.call.key, visit.request, visit.state.database
    if key is None:
        answer = await handler(request)
        await database.tell(_record_answer, visit, answer)
        return answer
    body = await request.body()
    print_ = idempotency.fingerprint(request.method, request.url.path, request.url.query, body)
    asked = (database, key, print_, visit.state.settings.idempotency_ttl_s)
    taken: KeyClaim | Response | None = await database.tell(idempotency.claim_key, *asked)
    if taken is None:
        taken = await run_in_threadpool(idempotency.replay_or_reclaim, *asked)
    if isinstance(taken, Response):
        visit.state.metrics.reused.labels("idempotency-key").inc()
        await database.tell(_record_answer, visit, taken)
        return taken
    held = replace(visit, claim=taken)
    try:
        answer = await handler(request)
    except Exception:
        await database.tell(_write, visit.state, taken, None, None)
        raise
    await database.tell(_record_answer, held, answer)
    return answer


def _not_modified_or(request: Request, response: Response) -> Response:
    """Replace the response by 304 if the client has this version."""
    tag = response.headers.get("etag")
    if (
        response.status_code != 200
        or tag is None
        or not matches_if_none_match(request.headers.get("if-none-match"), tag)
    ):
        return response
    return Response(status_code=304, headers={"etag": tag})


def _record_answer(visit: _AdmittedRequest, answer: Response) -> None:
    """Write the answer to the audit log, and store it under the request's idempotency key."""
    caller, call = visit.call.caller, visit.call
    entry = _entry(visit.request, caller.tenant, caller.key_id, caller.address, call.request_id, answer.status_code)
    _write(visit.state, visit.claim, answer, replace(entry, location=answer.headers.get("location")))


@dataclass(frozen=True, slots=True)
class _AuditEntry:
    """An entry of the audit log."""

    tenant: str
    caller: str | None
    address: str
    method: str
    path: str
    status: int
    request_id: str
    location: str | None = None

    def values(self) -> dict[str, object]:
        """Values of ``_NOTE``'s parameters, except the tenant."""
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
    """Escape text from a stranger for logs."""
    return printable(text).encode("ascii", "backslashreplace").decode()


_audit = table_of(AuditRow)
_NOTE = insert(_audit).values({**bind_parameters(_audit, "noted_"), "tenant": bindparam(TENANT_PARAMETER)})


def _entry(
    request: PlainRequest, tenant: str, key_id: str | None, address: str, identity: str, status: int
) -> _AuditEntry:
    asked = f"?{request.url.query}" if request.method == "DELETE" and request.url.query else ""
    return _AuditEntry(tenant, key_id, address, request.method, request.url.path + asked, status, identity)


async def audit_call(
    request: PlainRequest, state: AppState, status: int, tenant: str = NO_TENANT, key_id: str | None = None
) -> None:
    """Write a call to the audit log, for routes of other classes."""
    address = request.client.host if request.client else ""
    entry = _entry(request, tenant, key_id, address, request.scope.get("request_id", "-"), status)
    await state.database.tell(_write, state, None, None, entry)


def _write(state: AppState, claim: KeyClaim | None, answer: Response | None, entry: _AuditEntry | None) -> None:
    """Write the audit entry and settle the claim. The request is done by now: a failed write does not change the answer."""
    database = state.database if entry is None else state.database.of(entry.tenant)
    statements = [] if claim is None else [idempotency.settle_statement(claim, answer)]
    if entry is not None:
        statements.append((_NOTE, entry.values()))
    try:
        database.execute(*statements)
    except SQLAlchemyError as error:
        _log.error("could not write a response to the audit log: %s", error)
