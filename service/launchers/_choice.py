"""The launcher that the settings choose, from JSON: the process that runs a job reads no settings of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.torchrun import environment
from service.launchers._base import Launcher

Document = dict[str, Any]


def launcher_of(options: Mapping[str, Any]) -> Launcher:
    """The launcher of ``Settings.launching``."""
    return _MAKERS[options["name"]](Path(options["root"]), options)


def _local(root: Path, options: Mapping[str, Any]) -> Launcher:  # noqa: ARG001  # a maker of the table
    from service.launchers._local import LocalLauncher

    return LocalLauncher(root)


def _slurm(root: Path, options: Mapping[str, Any]) -> Launcher:
    from service.launchers._slurm import SlurmLauncher

    return SlurmLauncher(root, python=_python(options), python_path=_python_path(), options=options["slurm_options"])


def _ray(root: Path, options: Mapping[str, Any]) -> Launcher:
    from service.launchers._ray import RayLauncher

    return RayLauncher(root, url=options["ray_url"], python=_python(options), python_path=_python_path())


def _kubernetes(root: Path, options: Mapping[str, Any]) -> Launcher:
    from service.launchers._kubernetes import Access, KubernetesLauncher, Pods

    asked = options["kubernetes"]
    for name in ("image", "claim"):
        if not asked[name]:
            raise InputError(f"AUTOSBP_KUBERNETES_{name.upper()}", asked[name], "the launcher kubernetes needs it")
    account = Path(asked["account_dir"])
    access = Access(asked["url"], asked["namespace"], account / "token", account / "ca.crt")
    pods = Pods(asked["image"], asked["claim"], Path(asked["mount"]), options["python"] or "python")
    return KubernetesLauncher(root, access=access, pods=pods)


def _python(options: Mapping[str, Any]) -> str:
    return str(options["python"] or sys.executable)


def _python_path() -> str:
    return environment()["PYTHONPATH"]


_MAKERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Launcher]] = {
    "local": _local,
    "slurm": _slurm,
    "ray": _ray,
    "kubernetes": _kubernetes,
}
