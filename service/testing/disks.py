"""A small disk mounted on a folder, for tests with full or failing disks; needs root and util-linux."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from autosbp.service.testing import _daemons

_PROGRAMS = ("unshare", "nsenter", "setpriv", "mount")
_LOOP = ("mkfs.ext4",)


def missing_programs(*, loop: bool = False) -> list[str]:
    """Programs and rights that this machine lacks to mount a disk; with ``loop``, also those for a failing disk."""
    lacks = [name for name in _PROGRAMS + (_LOOP if loop else ()) if shutil.which(name, path=_daemons.PATH) is None]
    if loop and not Path("/dev/loop-control").exists():
        lacks.append("a loop device")
    return lacks + ([] if os.geteuid() == 0 else ["root"])


class Disk:
    """Mounts a disk on a folder during the block, in its own mount namespace.

    Commands run with the prefix ``within`` see the disk; ``path`` gives access to its files from outside.

    Args:
        folder: mount point; created if needed.
        mount: arguments of ``mount`` before the folder.
    """

    def __init__(self, folder: Path, mount: Sequence[str]) -> None:
        self._folder, self._mount = folder.resolve(), mount
        self._folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def in_memory(cls, folder: Path, num_bytes: int, owner: int = 0) -> Self:
        """A tmpfs disk, which can be filled."""
        return cls(folder, ["-t", "tmpfs", "-o", f"size={num_bytes},uid={owner},gid={owner},mode=0700", "tmpfs"])

    @classmethod
    def on_image(cls, folder: Path, image: Path, num_bytes: int) -> Self:
        """An ext4 disk on an image file, which becomes read-only at its first error (see ``fail``)."""
        with image.open("wb") as file:
            file.truncate(num_bytes)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        return cls(folder, ["-o", "loop,errors=remount-ro", str(image)])

    def __enter__(self) -> Self:
        script = 'mount "$@" && echo mounted && exec sleep infinity'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", *self._mount, str(self._folder)]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "mounted\n":
            self.__exit__()
            raise OSError(f"{self._folder} cannot be mounted: {' '.join(self._mount)}")
        return self

    def __exit__(self, *error: object) -> None:
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """Command prefix that runs a command where the disk is mounted, in the current working folder."""
        return ("nsenter", "--mount", f"--target={self._holder.pid}", f"--wdns={Path.cwd()}")

    def path(self, name: str) -> Path:
        """Path of a file on the disk, as seen from outside its namespace."""
        return Path(f"/proc/{self._holder.pid}/root{self._folder}") / name

    def fill(self) -> None:
        """Fill the disk completely."""
        with self.path("filling").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                if "No space left" not in str(error):
                    raise

    def free(self) -> None:
        """Delete the filling."""
        self.path("filling").unlink()

    def close(self) -> None:
        """Remount the disk read-only, until ``reopen``."""
        self._do("mount", "-o", "remount,ro")

    def set_writable(self) -> None:
        """Remount the disk writable, after ``close``."""
        self._do("mount", "-o", "remount,rw")

    def lose(self) -> None:
        """Unmount the disk until ``return_``, leaving an empty folder; only an image keeps its content."""
        self._do("umount", "--lazy")

    def remount(self) -> None:
        """Mount the disk again, after ``lose``."""
        self._do("mount", *self._mount)

    def _do(self, *command: str) -> None:
        subprocess.run([*self.command_prefix, *command, str(self._folder)], check=True)

    def fail(self) -> None:
        """Simulate a disk error: the kernel makes the file system read-only."""
        self._do("mount", "-o", "remount,abort")
