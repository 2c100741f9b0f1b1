"""Running the service: ``serve``, for the command line and for ``python -m autosbp.service``."""

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
from autosbp.service import gc_freeze
from autosbp.service.app import create_app
from autosbp.service.connection_limits import Connection, DescriptorMonitor, make_connection_class, raise_descriptors
from autosbp.service.db import one_line_message
from autosbp.service.file_permissions import restrict_permissions
from autosbp.service.http.middleware import RequestIds
from autosbp.service.request_state import AppState
from autosbp.service.settings import Settings

_log = logging.getLogger("autosbp.service")
_SHUTDOWN_S = 3
_SWITCH_S = 5e-4  # GIL switch interval: with the default of 5 ms, threads starve next to a busy event loop
_TICKS_PER_S = 10
_KEEP_ALIVE_S = 75  # longer than common proxies and clients, so that they close idle connections first


def serve(settings: Settings, on_ready: Callable[[str], None] | None = None, app: FastAPI | None = None) -> None:
    """Serve until SIGINT or SIGTERM. Logs go to standard error; nothing is written to standard output.

    Args:
        settings: port 0 selects a free port.
        on_ready: called with the service's URL once it answers.
        app: application to serve in place of ``create_app(settings)``.

    Raises:
        ServiceError: the port, the data folder or the database is in use, or startup failed.
        InputError: a setting proved wrong at startup, such as a folder that cannot be created.
    """
    log_to_standard_error()
    sys.setswitchinterval(_SWITCH_S)
    raise_descriptors()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    restrict_permissions(settings)
    app = app if app is not None else create_app(settings)
    listener = _listen(settings.host, settings.port)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    # a failed startup is reported once, below
    logging.getLogger("uvicorn.error").addFilter(lambda _record: app.state.failure is None)
    config = uvicorn.Config(
        app,
        http=make_connection_class(settings.max_connections, settings.max_connections_of_address, settings.proxies),
        ws="none",
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
            raise  # uvicorn raises the signal again after its shutdown
        failure = app.state.failure
        if isinstance(failure, InputError):
            raise failure from None
        reason = one_line_message(failure) if isinstance(failure, SQLAlchemyError) else failure or "the log says why"
        raise ServiceError(f"cannot start the service: {reason}") from None


class _Server(uvicorn.Server):
    """A uvicorn server that ends event streams on the first signal and closes connections past their deadlines."""

    def __init__(self, config: uvicorn.Config, state: AppState) -> None:
        super().__init__(config)
        self._state, self._descriptors = state, DescriptorMonitor()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; checks connections and descriptors every tenth call."""
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
    """Log to standard error, with the request's id in each line."""
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
        gc_freeze.freeze_all()
        _log.info("autosbp is ready at %s", url)
        if on_ready is not None:
            on_ready(url)
    await serving


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Name the protocol: asyncio sets TCP_NODELAY only on sockets that name it.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServiceError(f"cannot listen on {host} port {port}: {error}") from None
    return listener
