"""A process that owns an emulated cluster and stays in its block: ``python -m tests.testing.owner FOLDER [DELAY_MS]``.

It writes the nodes' namespaces to ``FOLDER/namespaces``; with a delay it also starts ranks that stay.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from autosbp.testing.emulated import EmulatedCluster


def main(folder: str, delay_ms: str = "0") -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits that it is ignored
    with EmulatedCluster(nodes=2, ranks_per_node=1, delay_ms=float(delay_ms)) as cluster:
        (Path(folder) / "part").write_text("\n".join(cluster.namespaces))
        (Path(folder) / "part").rename(Path(folder) / "namespaces")
        if cluster.shape.delay_ms:
            cluster.run("tests.testing.ranks", ["hang", folder])
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
