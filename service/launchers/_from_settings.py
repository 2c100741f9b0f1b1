"""Builds the configured launcher from JSON: the process that runs a job reads no settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.launch.local import rank_environment
from autosbp.service.launchers._base import Launcher

Document = dict[str, Any]


def make_launcher(options: Mapping[str, Any]) -> Launcher:
    """Build the launcher from the document of ``Settings.launching``.

    Raises ``InputError`` if a setting that the launcher needs is missing.
    """
    return _FACTORIES[options["name"]](Path(options["root"]), options)


def _local(root: Path, options: Mapping[str, Any]) -> Launcher:  # noqa: ARG001  # a maker of the table
    from autosbp.service.launchers._local import LocalLauncher

    return LocalLauncher(root)


def _slurm(root: Path, options: Mapping[str, Any]) -> Launcher:
    from autosbp.service.launchers._slurm import SlurmLauncher

    return SlurmLauncher(root, python=_python(options), python_path=_python_path(), options=options["slurm_options"])


def _ray(root: Path, options: Mapping[str, Any]) -> Launcher:
    from autosbp.service.launchers._ray import RayLauncher

    return RayLauncher(root, url=options["ray_url"], python=_python(options), python_path=_python_path())


def _kubernetes(root: Path, options: Mapping[str, Any]) -> Launcher:
    from autosbp.service.launchers._kubernetes import ClusterAccess, KubernetesLauncher, PodTemplate

    asked = options["kubernetes"]
    for name in ("image", "claim"):
        if not asked[name]:
            raise InputError(f"AUTOSBP_KUBERNETES_{name.upper()}", asked[name], "required by the launcher kubernetes")
    account = Path(asked["account_dir"])
    access = ClusterAccess(asked["url"], asked["namespace"], account / "token", account / "ca.crt")
    pods = PodTemplate(asked["image"], asked["claim"], Path(asked["mount"]), options["python"] or "python")
    pods = replace(pods, memory=asked.get("memory", ""))
    return KubernetesLauncher(root, access=access, pods=pods)


def _python(options: Mapping[str, Any]) -> str:
    return str(options["python"] or sys.executable)


def _python_path() -> str:
    return rank_environment()["PYTHONPATH"]


_FACTORIES: Mapping[str, Callable[[Path, Mapping[str, Any]], Launcher]] = {
    "local": _local,
    "slurm": _slurm,
    "ray": _ray,
    "kubernetes": _kubernetes,
}
