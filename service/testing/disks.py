"""A small disk on a folder, for tests of what happens as it gets full or fails: root and util-linux."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from service.testing import _daemons

_PROGRAMS = ("unshare", "nsenter", "setpriv", "mount")
_LOOP = ("mkfs.ext4",)


def missing_programs(*, loop: bool = False) -> list[str]:
    """What this machine lacks for a disk that is mounted; for one that fails, too, with ``loop``."""
    lacks = [name for name in _PROGRAMS + (_LOOP if loop else ()) if shutil.which(name, path=_daemons.PATH) is None]
    if loop and not Path("/dev/loop-control").exists():
        lacks.append("a loop device")
    return lacks + ([] if os.geteuid() == 0 else ["root"])


class Disk:
    """Mounted on a folder as long as the block, in a namespace of its own: seen by what is run ``within``, and by ``path``.

    Args:
        mount: the arguments of ``mount`` before the folder.
    """

    def __init__(self, folder: Path, mount: Sequence[str]) -> None:
        self._folder, self._mount = folder.resolve(), mount
        self._folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def in_memory(cls, folder: Path, num_bytes: int, owner: int = 0) -> Self:
        """One that can be filled."""
        return cls(folder, ["-t", "tmpfs", "-o", f"size={num_bytes},uid={owner},gid={owner},mode=0700", "tmpfs"])

    @classmethod
    def on_image(cls, folder: Path, image: Path, num_bytes: int) -> Self:
        """One that becomes read-only with its first error, as ``fail`` makes one."""
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
    def within(self) -> tuple[str, ...]:
        """A command before another one that becomes it, where the disk is there; from the same working folder."""
        return ("nsenter", "--mount", f"--target={self._holder.pid}", f"--wdns={Path.cwd()}")

    def path(self, name: str) -> Path:
        """A file on the disk, as seen from here."""
        return Path(f"/proc/{self._holder.pid}/root{self._folder}") / name

    def fill(self) -> None:
        """Leave no room at all."""
        with self.path("filling").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                if "No space left" not in str(error):
                    raise

    def free(self) -> None:
        """Make room again."""
        self.path("filling").unlink()

    def close(self) -> None:
        """Let nobody write any more, until ``reopen``."""
        self._do("mount", "-o", "remount,ro")

    def reopen(self) -> None:
        """After ``close``."""
        self._do("mount", "-o", "remount,rw")

    def lose(self) -> None:
        """Have an empty folder in its place, until ``return_``; one on an image alone comes back with what it held."""
        self._do("umount", "--lazy")

    def return_(self) -> None:
        """After ``lose``."""
        self._do("mount", *self._mount)

    def _do(self, *command: str) -> None:
        subprocess.run([*self.within, *command, str(self._folder)], check=True)

    def fail(self) -> None:
        """As a disk error does: the kernel lets nobody write any more."""
        self._do("mount", "-o", "remount,abort")
