"""Running the service: ``serve`` for the command line, ``python -m service`` without it."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from autosbp.errors import InputError, ServiceError
from service import garbage
from service.app import create_app
from service.connections import Connection, Descriptors, limited, raise_descriptors
from service.db import plainly
from service.edge.middleware import RequestIds
from service.privacy import keep_private
from service.settings import Settings
from service.state import State

_log = logging.getLogger("service")
_SHUTDOWN_S = 3
_SWITCH_S = 5e-4  # until a thread that wants Python gets it: with the usual 5 ms, those beside a busy event loop starve
_TICKS_PER_S = 10
_KEEP_ALIVE_S = 75  # longer than usual proxies and clients keep a connection, so that they close it, not we


def serve(settings: Settings, on_ready: Callable[[str], None] | None = None, app: FastAPI | None = None) -> None:
    """Serve until SIGINT or SIGTERM. Logs go to standard error; nothing is written on standard output.

    Args:
        settings: port 0 takes a free port.
        on_ready: called with the service's URL once it answers.
        app: another application than ``create_app(settings)``.

    Raises:
        ServiceError: the port, the data folder or the database is taken, or start-up failed.
        InputError: a setting that only starting finds wrong, such as a folder that cannot be made.
    """
    log_to_standard_error()
    sys.setswitchinterval(_SWITCH_S)
    raise_descriptors()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    keep_private(settings)
    app = app if app is not None else create_app(settings)
    listener = _listen(settings.host, settings.port)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    logging.getLogger("uvicorn.error").addFilter(lambda _record: app.state.failure is None)  # which is said once, by us
    config = uvicorn.Config(
        app,
        http=limited(settings.max_connections),
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.proxies),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    server = _Server(config, app.state.service)
    try:
        with listener, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_run(server, listener, url, on_ready))
    except SystemExit:
        if app.state.service.closing.is_set():
            raise  # the signal that asked for the end, raised again when it has come
        failure = app.state.failure
        if isinstance(failure, InputError):
            raise failure from None
        reason = plainly(failure) if isinstance(failure, SQLAlchemyError) else failure or "the log says why"
        raise ServiceError(f"the service could not start: {reason}") from None


class _Server(uvicorn.Server):
    """Tells streams to end as soon as a signal asks for the end of the service, and late connections to end."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self._state, self._descriptors = state, Descriptors()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; connections are looked at once in it."""
        if counter % _TICKS_PER_S == 0:
            now_s = asyncio.get_running_loop().time()
            for connection in [each for each in self.server_state.connections if isinstance(each, Connection)]:
                connection.end_if_late(now_s)
            self._descriptors.check()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT or SIGTERM."""
        self._state.closing.set()
        self._state.feed.close()
        super().handle_exit(sig, frame)


def log_to_standard_error() -> None:
    """Say what happens, and for which request."""
    form = "%(levelname)s:     %(name)s: [%(request_id)s] %(message)s"
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=form)
    for handler in logging.getLogger().handlers:
        handler.addFilter(RequestIds())


async def _run(
    server: uvicorn.Server, listener: socket.socket, url: str, on_ready: Callable[[str], None] | None
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        garbage.keep_all()
        _log.info("autosbp is ready at %s", url)
        if on_ready is not None:
            on_ready(url)
    await serving


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, because asyncio sends without delay (TCP_NODELAY) only on sockets that name it.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServiceError(f"cannot listen on {host} port {port}: {error}") from None
    return listener
