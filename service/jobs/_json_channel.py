"""Messages between the runner and its worker process: JSON over a pipe, never pickles."""

from __future__ import annotations

import json
import threading
from multiprocessing.connection import Connection
from typing import Any


class Channel:
    """One end of the pipe. Any thread may send; one thread receives.

    Methods raise ``EOFError`` or ``OSError`` when the peer is gone.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, op: str, **members: Any) -> None:
        """Send one message."""
        message = json.dumps({"op": op, **members}, allow_nan=False).encode()
        with self._sending:
            self._connection.send_bytes(message)

    def receive(self) -> dict[str, Any]:
        """Wait for the next message."""
        message: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return message

    def poll(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for a message or the peer's end; return whether there is one."""
        return self._connection.poll(timeout_s)

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
