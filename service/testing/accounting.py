"""Slurm accounting for tests: a real slurmdbd on its own MariaDB. Packages slurmdbd, mariadb-server-core."""

from __future__ import annotations

import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from autosbp.service.testing import _daemons

_PROGRAMS = ("slurmdbd", "mariadbd", "sacct", "sacctmgr")
_TABLES = Path("/usr/share/mysql")
_SCRIPTS = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
_QUICK = ("--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite")
_CONF = """\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounts
CommitDelay=0
"""


def missing_programs() -> list[str]:
    """Programs that this machine lacks for accounting."""
    return [name for name in _PROGRAMS if shutil.which(name, path=_daemons.PATH) is None]


class Accounting:
    """Runs accounting during the block; ``conf`` are its lines for slurm.conf. The given munge daemon must be running.

    MariaDB listens only on a socket in the folder, without a password.
    """

    def __init__(self, folder: Path, munge: Path, port: int) -> None:
        self._folder, self._munge, self._port = folder, munge, port
        self._stack = ExitStack()
        self.conf = (
            "AccountingStorageType=accounting_storage/slurmdbd\n"
            f"AccountingStorageHost=127.0.0.1\nAccountingStoragePort={port}\n"
            f"AccountingStoragePass={munge}\n"
        )

    def __enter__(self) -> Self:
        data, scratch, listening = (self._folder / f"mariadb{end}" for end in ("", ".tmp", ".socket"))
        data.mkdir(parents=True)
        # its own: a starting server deletes all temporary tables in its folder, also those of other servers
        scratch.mkdir()
        options = ("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--tmpdir={scratch}", *_QUICK)
        tables = "".join((_TABLES / name).read_text() for name in _SCRIPTS)
        script = f"CREATE DATABASE mysql;\nUSE mysql;\n{tables}"
        with (self._folder / "bootstrap.out").open("wb") as log:
            subprocess.run([*options, "--bootstrap"], input=script.encode(), stdout=log, stderr=log, check=True)
        at = (
            f"--socket={listening}",
            "--skip-networking",
            "--skip-grant-tables",
            f"--pid-file={self._folder}/mariadb.pid",
        )
        with ExitStack() as stack:
            stack.callback(_daemons.stop, _daemons.start(self._folder, "mariadbd", *options, *at))
            _daemons.wait_until(listening.is_socket, self._folder, "mariadbd")
            conf = self._folder / "slurmdbd.conf"
            conf.write_text(_CONF.format(port=self._port, folder=self._folder, munge=self._munge))
            conf.chmod(0o600)
            variables = {"SLURM_CONF": str(self._folder / "slurm.conf"), "MYSQL_UNIX_PORT": str(listening)}
            stack.callback(_daemons.stop, _daemons.start(self._folder, "slurmdbd", "slurmdbd", "-D", **variables))
            _daemons.wait_until(self._answers, self._folder, "slurmdbd")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True
