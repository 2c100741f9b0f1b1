"""Lost submissions to a real Slurm with three virtual nodes: is every job there, and none twice?

python -m benchmarks.launchers [--each 20] [--json] [--check] [-o FILE]

Each way to lose a submission is a wrapper of ``sbatch`` on PATH. A job counts its runs in a file. Needs root and the
packages that scripts/system installs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from autosbp.service.launchers._slurm import SlurmLauncher
from autosbp.service.testing.launcher_conformance import LauncherTestSite, wait_for
from autosbp.service.testing.slurm import VirtualSlurm, missing_programs

_ROOT = Path(__file__).parents[1]
_REAL = "/usr/bin/sbatch"
LOSSES: Mapping[str, str] = {
    "the answer is lost": f'{_REAL} "$@" >/dev/null\nkill -9 $$\n',
    "the request is lost once": (
        f'if [ ! -e "$0.lost" ]; then touch "$0.lost"; kill -9 $$; fi\nrm "$0.lost"\nexec {_REAL} "$@"\n'
    ),
    "the service is killed as the answer comes": f'{_REAL} "$@" >/dev/null\nkill -9 $PPID\n',
    "the service is killed as it submits": "kill -9 $PPID\n",
}
_SUBMIT = """
import json, sys
from pathlib import Path
from autosbp.service.launchers._base import JobSpec
from autosbp.service.launchers._slurm import SlurmLauncher
root, python_path, key, spec = sys.argv[1:]
launcher = SlurmLauncher(Path(root), python=sys.executable, python_path=python_path)
launcher.submit(JobSpec.from_dict(json.loads(spec)), key)
"""


def main() -> int:
    """Print the table or, with ``--json``, one object; with ``--check``, return 1 if a job was lost or ran twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=20, help="submissions of each kind")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("-o", "--output", type=Path, help="write the result into a file")
    options = parser.parse_args()
    lacks = missing_programs()
    if lacks:
        print(json.dumps({"missing": lacks}) if options.json else f"no virtual Slurm here: needs {', '.join(lacks)}")
        return int(options.check)
    with tempfile.TemporaryDirectory(prefix="autosbp-slurm-") as folder, VirtualSlurm(Path(folder) / "slurm") as slurm:
        rows = {
            way: lose_submissions(slurm, Path(folder) / f"way-{at}", way, options.each) for at, way in enumerate(LOSSES)
        }
    bad = any(row["lost"] or row["twice"] or row["jobs"] != row["submitted"] for row in rows.values())
    found = {
        "command": " ".join(["python -m benchmarks.launchers", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "rows": rows,
        "passed": not bad,
    }
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{'':44}{'submitted':>10}{'jobs':>6}{'lost':>6}{'twice':>6}{'seconds':>9}")
        for way, row in rows.items():
            print(f"{way:44}{row['submitted']:10}{row['jobs']:6}{row['lost']:6}{row['twice']:6}{row['seconds']:9.1f}")
    return int(bad and options.check)


def lose_submissions(slurm: VirtualSlurm, folder: Path, way: str, count: int) -> dict[str, float]:
    """Submit ``count`` jobs, lose each submission in the given way and submit again; count lost and repeated jobs."""
    begun_s = time.monotonic()
    folder.mkdir(parents=True)
    place = LauncherTestSite(
        lambda: SlurmLauncher(folder / "jobs", python=sys.executable, python_path=str(_ROOT), exclusive=False),
        folder,
        1,
    )
    keys = [place.new_key() for _ in range(count)]
    with _environment(slurm, folder, LOSSES[way]) as losing:
        for key in keys:
            spec = place.spec(key, place.counted(key)[0])
            if "service" in way:
                command = [
                    sys.executable,
                    "-c",
                    _SUBMIT,
                    str(folder / "jobs"),
                    str(_ROOT),
                    key,
                    json.dumps(spec.to_dict()),
                ]
                subprocess.run(command, env={**os.environ, "PATH": losing, "PYTHONPATH": str(_ROOT)}, check=False)
                place.make().submit(spec, key)
            else:
                path = os.environ["PATH"]
                os.environ["PATH"] = losing
                try:
                    place.make().submit(spec, key)
                finally:
                    os.environ["PATH"] = path
        for key in keys:
            wait_for(place.make(), key, "succeeded", "failed")
    runs = [len(place.counted(key)[1]) for key in keys]
    names = ",".join(f"autosbp-{key}" for key in keys)
    jobs = slurm.client("squeue", "--noheader", "--states=all", f"--name={names}", "--format=%i").split()
    return {
        "submitted": count,
        "jobs": len(jobs),
        "lost": runs.count(0),
        "twice": sum(each > 1 for each in runs),
        "seconds": time.monotonic() - begun_s,
    }


@contextmanager
def _environment(slurm: VirtualSlurm, folder: Path, script: str) -> Iterator[str]:
    """Point Slurm clients to this cluster; yields a PATH whose ``sbatch`` runs ``script``."""
    sbatch = folder / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\n{script}")
    sbatch.chmod(0o755)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(slurm.conf)
    try:
        yield f"{sbatch.parent}:{os.environ['PATH']}"
    finally:
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before


if __name__ == "__main__":
    sys.exit(main())
