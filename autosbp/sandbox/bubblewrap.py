"""Command lines of bubblewrap (``bwrap``; github.com/containers/bubblewrap): a confined process's view of the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "bwrap"
TEMPORARY = "/tmp"  # noqa: S108  # the sandbox's own
_ROOT = Path(__file__).resolve().parent.parent.parent
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
_SETTINGS = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "passwd", "group", "nsswitch.conf", "hosts"),
    *("resolv.conf", "localtime", "ssl/certs", "OpenCL", "libibverbs.d", "nccl.conf"),
)
"""Files and folders of /etc that the sandbox shows."""
_DEVICES = ("nvidia*", "dri", "kfd", "infiniband")
_TEMPORARY_BYTES = 2 * 2**30
_SHARED_BYTES = 16 * 2**30
_ISOLATION_OPTIONS = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent")


@dataclass(frozen=True, slots=True)
class View:
    """The files and devices that a sandbox shows, besides the system.

    Args:
        folder: the writable folder.
        python_path: readable folders of Python's path, in the format of ``PYTHONPATH``.
        hidden: files and folders that appear empty, wherever they are.
        gpus: whether the machine's GPUs are visible.
    """

    folder: Path
    python_path: str
    hidden: tuple[str, ...]
    gpus: bool


def command(view: View, *, own_network: bool, changes_user: bool) -> list[str]:
    """Prefix of a confined command; ``changes_user`` keeps root's capability to change the user id, and no other."""
    readable = list(_readable(view.python_path))
    return [
        *(PROGRAM, *_ISOLATION_OPTIONS, *(["--unshare-net"] if own_network else []), *_privileges(changes_user)),
        *_system(),
        *("--proc", "/proc", "--dev", "/dev", "--ro-bind-try", "/sys", "/sys"),
        *_tmpfs("/dev/shm", _SHARED_BYTES),  # noqa: S108  # the sandbox's own
        *_tmpfs(TEMPORARY, _TEMPORARY_BYTES),
        *(word for path in (_devices() if view.gpus else ()) for word in ("--dev-bind", path, path)),
        *_parent_folders(readable),
        *(word for path in readable for word in ("--ro-bind", path, path)),
        *_hide(view.hidden, readable),
        *_parent_folders([str(view.folder)]),
        *("--bind", str(view.folder), str(view.folder)),
        *("--remount-ro", "/", "--chdir", TEMPORARY, "--"),
    ]


def probe_command(options: Sequence[str]) -> list[str]:
    """Prefix of a command that tests whether bubblewrap works on this machine."""
    seen = (*_system(), "--proc", "/proc", "--dev", "/dev", *_tmpfs(TEMPORARY, _TEMPORARY_BYTES))
    return [PROGRAM, *_ISOLATION_OPTIONS, *options, *_privileges(False), *seen, "--remount-ro", "/", "--"]


def _privileges(changes_user: bool) -> list[str]:
    if os.geteuid() != 0:
        return ["--unshare-user"]
    kept = ("CAP_SETUID", "CAP_SETGID") if changes_user else ()
    return ["--cap-drop", "ALL", *(word for name in kept for word in ("--cap-add", name))]


def _system() -> Iterator[str]:
    for path in _SYSTEM:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)
    yield from _parent_folders(f"/etc/{name}" for name in _SETTINGS)
    for name in _SETTINGS:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


def _tmpfs(path: str, num_bytes: int) -> list[str]:
    return ["--perms", "1777", "--size", str(num_bytes), "--tmpfs", path]


def _devices() -> list[str]:
    return sorted(str(path) for pattern in _DEVICES for path in Path("/dev").glob(pattern))


def _readable(python_path: str) -> Iterator[str]:
    """Folders of Python and its libraries, outer folders first.

    A folder that contains the home or the whole machine is left out, unless it is this source tree.
    """
    given = [*python_path.split(os.pathsep), *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    named = [sys.prefix, sys.base_prefix, *sys.path, *given, os.environ.get("CUDA_HOME", "")]
    home = Path.home().resolve()
    found = {str(_ROOT)}
    for name in named:
        path = Path(name)
        if name and path.is_absolute() and path.exists() and not home.is_relative_to(path.resolve()):
            found |= {str(path), str(path.resolve())}
    inside_system = tuple(f"{path}/" for path in _SYSTEM)
    outer = [path for path in sorted(found, key=len) if not f"{path}/".startswith(inside_system)]
    yield from (path for path in outer if not any(path.startswith(f"{other}/") for other in outer))


def _parent_folders(paths: Iterable[str]) -> Iterator[str]:
    """Create parent folders of the paths with access for all; bubblewrap would create them for root only."""
    parents = {str(parent) for path in paths for parent in Path(path).parents} - {"/"}
    for parent in sorted(parents, key=len):
        yield from ("--perms", "755", "--dir", parent)


def _hide(hidden: Iterable[str], readable: Sequence[str]) -> Iterator[str]:
    """Cover hidden paths that would be visible."""
    for name in sorted(hidden, key=len):
        path = Path(name)
        if any(path.is_relative_to(root) for root in readable) and path.exists():
            yield from ("--tmpfs", name) if path.is_dir() else ("--ro-bind", os.devnull, name)
