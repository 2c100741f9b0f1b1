"""Serving below a path of another site: the application uses paths from ``/``, clients see the prefixed ones.

A reverse proxy may pass the configured prefix on or strip it; both work. Inside, paths have no prefix: routes, log,
metrics, idempotency keys, audit log. This middleware adds the prefix to ``Location``; pages add it to links when they
are rendered. ``X-Forwarded-Prefix`` is ignored: only the setting counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosbp.errors import InputError

ROOT_PATH_KEY = "autosbp.root"
"""Key of the prefix, such as ``/planner``, in a request's ASGI scope; missing without a prefix."""
_ROOT = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
_LONGEST = 200


def check_root_path(root: str) -> str:
    """Return the prefix without its trailing slash, "" for none; raise ``ValueError`` if it is invalid."""
    root = root.rstrip("/")
    if root and (len(root) > _LONGEST or not _ROOT.fullmatch(root)):
        raise ValueError(f"expected a path such as /planner of at most {_LONGEST} letters, digits and -._~")
    return root


def check_no_route_conflict(root: str, paths: Iterable[str]) -> None:
    """Raise ``InputError`` if a route begins with the prefix's first segment: paths would be ambiguous."""
    first = root.split("/")[1]
    if first in {path.split("/")[1] for path in paths}:
        raise InputError(
            "root_path", root, f"expected a path that does not begin with /{first}, which the service uses itself"
        )


class RootPath:
    """ASGI middleware that strips and adds the prefix; ``root`` is a non-empty result of ``check_root_path``."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app, self._root, self._raw = app, root, root.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(name, self._with_prefix(name, value)) for name, value in message["headers"]]
            await send(message)

        await self._app(self._without_prefix(scope), receive, sending)

    def _without_prefix(self, scope: Scope) -> Scope:
        path, raw = scope["path"], scope.get("raw_path")
        if path != self._root and not path.startswith(self._root + "/"):
            return {**scope, ROOT_PATH_KEY: self._root}
        if raw is not None:
            raw = raw.removeprefix(self._raw) or b"/"
        return {**scope, ROOT_PATH_KEY: self._root, "path": path[len(self._root) :] or "/", "raw_path": raw}

    def _with_prefix(self, name: bytes, value: bytes) -> bytes:
        return self._raw + value if name.lower() == b"location" and value.startswith(b"/") else value
