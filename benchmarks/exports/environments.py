"""Virtual environments of the trainers, which share this one's torch: ``python -m benchmarks.exports.environments``.

Each trainer has its own folder in ``AUTOSBP_TRAINERS`` (by default in the user's cache). pip installs the trainer and the
packages that it imports there, without other dependencies: torch and NumPy are those of the current environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torchtitan": ("torchtitan==0.2.2", "tyro", "docstring_parser", "typeguard", "einops", "datasets", "torchdata"),
    "torchtitan03": (
        *("torchtitan==0.3.0", "tyro", "docstring_parser", "typeguard", "einops", "datasets", "torchdata"),
        *("spmd_types==0.2.3", "torch_checkpointing"),
    ),
    "deepspeed": ("deepspeed==0.19.8", "hjson", "py-cpuinfo", "ninja", "einops", "msgpack"),
    "megatron": ("megatron-core==0.16.1", "einops"),
    "accelerate": ("accelerate==1.15.0",),
}
"""Requirements of pip for each environment."""
IMPORTED: Mapping[str, Sequence[str]] = {
    "torchtitan": (
        "dill",
        "multiprocess",
        "xxhash",
        "pyarrow",
        "pandas",
        "pytz",
        "python-dateutil",
        "pillow",
        "tensorboard",
    ),
}


def root() -> Path:
    return Path(os.environ.get("AUTOSBP_TRAINERS", Path.home() / ".cache" / "autosbp-trainers"))


def python_of(name: str) -> Path:
    """Path of the interpreter of a trainer's environment, which may not exist."""
    return root() / name / "bin" / "python"


def is_installed(name: str) -> bool:
    return (root() / name / "installed").exists()


def install(name: str) -> Path:
    """Create a trainer's environment unless it exists, with this environment's torch; returns its interpreter."""
    folder, is_new = root() / name, not is_installed(name)
    if is_new:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    inside = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (inside / "torch_of_autosbp.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    if is_new:
        _install_packages(name, folder)
    return python_of(name)


def _install_packages(name: str, folder: Path) -> None:
    environment = os.environ | {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    wanted = [*PACKAGES[name], *IMPORTED.get(name.removesuffix("03"), ())]
    pip = [str(python_of(name)), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "-U", "setuptools", "wheel"], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", *wanted], check=True, env=environment)
    (folder / "installed").write_text("\n".join(wanted) + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:] or PACKAGES:
        print(install(each))
