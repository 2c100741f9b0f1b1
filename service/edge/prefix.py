"""Below a path of another site: the application keeps its addresses, which begin at ``/``, and callers get theirs.

A reverse proxy may pass the path of the setting on or take it away; both are understood. Within, paths are without it: routes,
the log, metrics, idempotency keys, the audit log. ``Location`` has it put before it here, the pages' addresses when they are
rendered. What a request says of a prefix (``X-Forwarded-Prefix``) is not read: the setting alone counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosbp.errors import InputError

ROOT = "autosbp.root"
"""Where a request's scope has the path, such as ``/planner``; there is none without one."""
_ROOT = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
_LONGEST = 200


def checked(root: str) -> str:
    """The path without a last slash, "" for none; ``ValueError``."""
    root = root.rstrip("/")
    if root and (len(root) > _LONGEST or not _ROOT.fullmatch(root)):
        raise ValueError(f"a path such as /planner is expected: letters, digits and -._~, up to {_LONGEST} characters")
    return root


def check_apart(root: str, paths: Iterable[str]) -> None:
    """``InputError`` where a path of the application's own begins as the root does: which one is meant could not be told."""
    first = root.split("/")[1]
    if first in {path.split("/")[1] for path in paths}:
        raise InputError(
            "root_path", root, f"a path is expected that does not begin with /{first}, as the service's own do"
        )


class Prefix:
    """Around the whole application; ``root`` is as ``checked`` gives it, and not "" ."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app, self._root, self._raw = app, root, root.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(name, self._placed(name, value)) for name, value in message["headers"]]
            await send(message)

        await self._app(self._inner(scope), receive, sending)

    def _inner(self, scope: Scope) -> Scope:
        path, raw = scope["path"], scope.get("raw_path")
        if path != self._root and not path.startswith(self._root + "/"):
            return {**scope, ROOT: self._root}
        if raw is not None:
            raw = raw.removeprefix(self._raw) or b"/"
        return {**scope, ROOT: self._root, "path": path[len(self._root) :] or "/", "raw_path": raw}

    def _placed(self, name: bytes, value: bytes) -> bytes:
        return self._raw + value if name.lower() == b"location" and value.startswith(b"/") else value
