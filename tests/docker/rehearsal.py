"""The image without an engine: ``scripts/image`` takes every step of ``docker/Dockerfile`` on a copy of this machine's root.

The copy is an overlay in memory, in namespaces of its own, so that nothing of the machine changes. RUN steps are run in it as
they are written, and COPY steps as an engine would; then the command is started as ``docker/compose.yaml`` has it started -
its user, a read-only root, ``/data`` and ``/tmp`` in memory, no network but its own - and must become healthy by its own
check, and end at SIGTERM. What differs from an engine: the base image is this machine (a Debian with Python), and the
folder ``.venv`` is there before ``make setup``, which installs into it what is missing.

The stage ``nccl-tests`` is taken where the repository that it clones can be reached, for one kind of GPU (NVCC_GENCODE says
otherwise); nvcc and NCCL, which its base image has, come from PyPI where this machine has none (``scripts/nvcc``). Where it
cannot be taken, the steps that copy from it are left out, which is said; ``--nccl-tests`` makes that an error. Needs root.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.docker.dockerfile import Stage, Step, first_key, stages

ROOT = Path(__file__).parents[2]
_HEALTHY_S = 120.0
_INSIDE = "AUTOSBP_REHEARSAL"
_NCCL_TESTS, _REACHED_S = "nccl-tests", 20.0
_CUDA = "/usr/local/cuda"
_ONE_GPU = "-gencode=arch=compute_90,code=sm_90"
_PASSED_ON = (
    "GIT_CONFIG_",
    "NVCC_GENCODE",
    "PIP_",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)  # of the network, and of time


@dataclass
class Image:
    """What a stage has made so far: its root, and what later steps and the container get."""

    root: Path
    environment: dict[str, str]
    folder: str = "/"
    user: str = "0"
    mounts: list[Path] = field(default_factory=list)

    def at(self, path: str) -> Path:
        """A path of the image, on this machine."""
        return self.root / str(Path(self.folder) / path).lstrip("/")

    def command(self, *arguments: str, user: str | None = None) -> list[str]:
        """What runs a command in the image."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        into = ["chroot", f"--userspec={user or self.user}", str(self.root), "env", "-i", *variables]
        return [*into, "sh", "-c", f'cd {self.folder} && exec "$@"', "sh", *arguments]


def main() -> int:
    """Take the steps and say how long each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nccl-tests", action="store_true", help="take the stage nccl-tests in any case")
    arguments = parser.parse_args()
    if os.getuid() != 0:
        _say("scripts/image needs root, for its overlay of this machine's root")
        return 2
    if _INSIDE in os.environ:
        return _rehearse(Path(os.environ[_INSIDE]), arguments.nccl_tests)
    folder = tempfile.mkdtemp(prefix="image-")  # empty for this process, whatever is mounted there by the other one
    inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    again = [*inside, sys.executable, "-m", "tests.docker.rehearsal", *sys.argv[1:]]
    try:
        return subprocess.run(again, env={**os.environ, _INSIDE: folder}, check=False).returncode
    finally:
        os.rmdir(folder)


def _rehearse(folder: Path, must: bool) -> int:
    """In namespaces of its own, which take all mounts and processes with them when this ends."""
    _mount("-t", "tmpfs", "tmpfs", str(folder))
    made: dict[str, Image] = {}
    for stage in stages():
        if stage.name == _NCCL_TESTS and not (must or _is_reachable(stage)):
            _say(f"stage {stage.name}: left out, as the repository that it clones cannot be reached")
            continue
        made[stage.name] = _take(stage, folder / (stage.name or "image"), made)
    if _NCCL_TESTS in made:
        program = made[""].environment["NCCL_TESTS_HOME"] + "/build/all_reduce_perf"
        needs = subprocess.run(made[""].command("ldd", program), check=True, capture_output=True, text=True).stdout
        assert "libnccl.so" in needs and "libmpi.so" in needs and "not found" not in needs, needs
    _start(stages()[-1], made[""])
    left_out = "" if _NCCL_TESTS in made else f" but those of {_NCCL_TESTS}"
    _say(f"every step{left_out} was taken, and the container was healthy")
    return 0


def _is_reachable(stage: Stage) -> bool:
    """Whether the repository of a stage's ``git clone`` answers."""
    (url,) = [word for step in stage.all("RUN") for word in step.text.split() if word.startswith("https://")]
    asked = ["git", "ls-remote", "--heads", url]
    try:
        return subprocess.run(asked, capture_output=True, timeout=_REACHED_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _take(stage: Stage, folder: Path, made: Mapping[str, Image]) -> Image:
    """A stage's image."""
    _say(f"stage {stage.name or 'of the image'}, from {stage.base}: this machine stands in for it")
    given = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    image = Image(_overlay(folder, "/"), {"PATH": os.environ["PATH"], "DEBIAN_FRONTEND": "noninteractive", **given})
    if stage.name == _NCCL_TESTS:
        image.environment.setdefault("NVCC_GENCODE", _ONE_GPU)
        if not (image.at(_CUDA).exists() and image.at("/usr/include/nccl.h").exists()):
            _bring_cuda(image)
    for name in ("dev", "sys", "proc"):
        _mount("--rbind", f"/{name}", str(image.root / name))
    for step in stage.steps:
        begun_s = time.perf_counter()
        done = _do(step, image, made)
        _say(f"{time.perf_counter() - begun_s:7.1f} s  {step.name} {' '.join(step.text.split())[:100]}{done}")
    return image


def _bring_cuda(image: Image) -> None:
    """nvcc and CUDA's runtime, if this machine has none, and NCCL, where NVIDIA's base image has them."""
    begun_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([str(ROOT / "scripts" / "nvcc"), folder], check=True)
        if not image.at(_CUDA).exists():
            shutil.copytree(Path(folder, "cuda"), image.at(_CUDA), symlinks=True)
        for ours, theirs in (("include", "/usr/include"), ("lib", "/usr/lib/x86_64-linux-gnu")):
            shutil.copytree(Path(folder, "nccl", ours), image.at(theirs), symlinks=True, dirs_exist_ok=True)
    _say(f"{time.perf_counter() - begun_s:7.1f} s  nvcc and NCCL from PyPI")


def _do(step: Step, image: Image, made: Mapping[str, Image]) -> str:
    if step.name in ("ARG", "ENV"):
        image.environment |= step.pairs
    elif step.name == "RUN":
        subprocess.run(image.command("sh", "-c", step.text), check=True, stdin=subprocess.DEVNULL)
    elif step.name == "COPY":
        return _copy(step, image, made)
    elif step.name == "WORKDIR":
        image.folder = str(Path(image.folder) / step.text)
        image.at(".").mkdir(parents=True, exist_ok=True)
    elif step.name == "USER":
        image.user = step.text
    return ""


def _copy(step: Step, image: Image, made: Mapping[str, Image]) -> str:
    *options, source, target = step.text.split()
    if not options:
        assert (source, target) == (".", "."), "the rehearsal copies the whole repository, or from another stage"
        shutil.copytree(ROOT, image.at(target), ignore=_ignored(), symlinks=True, dirs_exist_ok=True)
        real = (ROOT / ".venv").resolve()
        image.at(".venv").mkdir()
        image.mounts.append(_overlay(image.root.parent / "venv", str(real), image.at(".venv")))
        return ""
    name = options[0].removeprefix("--from=")
    if name not in made:
        return "  (left out: its stage was)"
    shutil.copytree(made[name].at(source), image.at(target), dirs_exist_ok=True)
    return ""


def _ignored():  # type: ignore[no-untyped-def]  # shutil's own kind of function
    patterns = [line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().split()]
    return lambda _, names: {name for name in names if any(fnmatch.fnmatch(name, each) for each in patterns)}


def _start(stage: Stage, image: Image) -> None:
    """Start the container, wait until it is healthy, and end it."""
    _let_everybody_read_python(image)
    uid = image.user
    assert uid.isdigit() and int(uid) > 0
    for path, options in ((image.root / "tmp", "mode=1777"), (image.root / "data", f"uid={uid},mode=755")):
        _mount("-t", "tmpfs", "-o", options, "tmpfs", str(path))
    for path in (image.root, *image.mounts):
        _mount("-o", "remount,ro,bind", str(path))
    refused = subprocess.run(image.command("touch", "/app/x"), capture_output=True, check=False)
    assert refused.returncode != 0, "the root file system can be written"
    begun_s = time.perf_counter()
    subprocess.run(image.command(*first_key()), check=True, stdout=subprocess.DEVNULL)
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    container = subprocess.Popen([*alone, *image.command(*stage.only("CMD").command)])
    try:
        check = image.command(*stage.only("HEALTHCHECK").command)
        network = ["nsenter", f"--net=/proc/{container.pid}/ns/net"]
        while subprocess.run([*network, *check], capture_output=True, check=False).returncode != 0:
            assert container.poll() is None, "the container has ended"
            assert time.perf_counter() - begun_s < _HEALTHY_S, "the container does not become healthy"
            time.sleep(0.5)
    finally:
        container.send_signal(signal.SIGTERM)
        status = container.wait(30)
    assert status in (0, -signal.SIGTERM, 128 + signal.SIGTERM), status
    _say(f"{time.perf_counter() - begun_s:7.1f} s  a key, the command until it is healthy, and its end")


def _let_everybody_read_python(image: Image) -> None:
    """A base image has its Python where everybody may read it; this machine's may be in somebody's home."""
    python = (ROOT / ".venv" / "bin" / "python").resolve()
    for folder in python.parents:
        path = image.root / str(folder).lstrip("/")
        path.chmod(path.stat().st_mode | 0o055)


def _overlay(folder: Path, lower: str, target: Path | None = None) -> Path:
    """Mount a copy of ``lower`` that can be written."""
    target = target or folder / "root"
    for each in (folder / "upper", folder / "work", target):
        each.mkdir(parents=True, exist_ok=True)
    _mount(
        "-t", "overlay", "-o", f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work", "overlay", str(target)
    )
    return target


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
