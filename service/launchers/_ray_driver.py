"""Driver of a job on several nodes of Ray: a placement group with a bundle, and a process, on each node.

python -m autosbp.service.launchers._ray_driver FOLDER TOKEN PYTHON
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autosbp.service.launchers._job_folder import JobFolder


def main(path: str, token: str, python: str) -> int:
    """Run all nodes' processes; return the largest exit code, 0 if all succeeded."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    spec = JobFolder(Path(path).parent, Path(path).name).spec
    ray.init(address="auto", log_to_driver=True, logging_level="warning")
    bundle: dict[str, float] = {"CPU": spec.ranks_per_node}
    if spec.gpus_per_node:
        bundle["GPU"] = spec.gpus_per_node
    group = placement_group([bundle] * spec.num_nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    run = ray.remote(num_cpus=spec.ranks_per_node, num_gpus=spec.gpus_per_node, max_retries=0)(run_node)
    python_path = os.environ.get("PYTHONPATH", "")
    waiting = [
        run.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=node
            )
        ).remote(python, python_path, path, token, node)
        for node in range(spec.num_nodes)
    ]
    worst = 0
    while waiting:
        done, waiting = ray.wait(waiting)
        worst = max(worst, *ray.get(done))
    return worst


def run_node(python: str, python_path: str, path: str, token: str, node: int) -> int:
    """Run one node's process in a Ray worker; it ends itself when another node fails or this worker ends."""
    command = [python, "-m", "autosbp.service.launchers._node_process", path, token, str(node), "--with-parent"]
    return abs(subprocess.run(command, env={**os.environ, "PYTHONPATH": python_path}).returncode)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
