"""Poll /healthz continuously and record response times: ``python -m benchmarks.attack._probe HOST PORT FILE``.

Runs as a separate process, so that concurrent attackers take only processor time from it. Each line of the file has the
time of a request and the seconds until its response, or -1 if there was none.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

_EVERY_S, _PATIENCE_S, _ADDRESS = 0.02, 10.0, "127.0.0.9"


def main(host: str, port: int, path: Path) -> None:
    """Poll until the process is terminated."""
    request = f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    connection: socket.socket | None = None
    with path.open("w", buffering=1) as file:
        while True:
            begun_s = time.monotonic()
            try:
                if connection is None:
                    connection = socket.create_connection((host, port), _PATIENCE_S, (_ADDRESS, 0))
                connection.sendall(request)
                said = b""
                while b"}" not in said:
                    part = connection.recv(4096)
                    if not part:
                        raise ConnectionError
                    said += part
                taken_s = time.monotonic() - begun_s if said.startswith(b"HTTP/1.1 200 ") else -1.0
            except OSError:
                taken_s = -1.0
            if taken_s < 0 and connection is not None:
                connection.close()
                connection = None
            file.write(f"{begun_s} {taken_s}\n")
            time.sleep(max(0.0, begun_s + _EVERY_S - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
