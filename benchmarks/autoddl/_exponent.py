"""AutoDDL's section 4.4.2: traffic and memory of an n x n product on p devices fall as p^(-2/3).

At p devices, a collective over p^(1/3) of them sends 1 - p^(-1/3) of its message, so only many devices show the pure
power law: from 8 to 32,768 devices the minimum traffic falls as p^-0.59. Both ranges are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autosbp.cluster.spec import Cluster, Device, Level
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.network import NetworkModel
from benchmarks.autoddl_fig8._count_boxing import CountBoxing, compositions
from benchmarks.autoddl_fig8._count_problem import splits

SIDE, DEVICES, FEW_DEVICES = 2**21, (2**12, 2**15, 2**18, 2**21), (2**3, 2**6, 2**9, 2**12, 2**15)
BYTES_PER_S = 1e9
DEVICE = Device("communication only", "cuda", 1 << 40, {"float32": 1e18}, 1e30, op_overhead_s=0.0)


def exponents() -> dict[str, Any]:
    """Minimum traffic and memory per number of devices, and their slopes over p in logarithms.

    Traffic is the minimum over all (p0, p1, p2) of the bytes that a device sends in forward, from split inputs and
    weights to a split output; memory is what it then holds. ``from_8`` is the same for 8 to 32,768 devices.
    """
    return _of(DEVICES) | {"from_8": _of(FEW_DEVICES)}


def _of(devices: Sequence[int]) -> dict[str, Any]:
    rows = [_row(count) for count in devices]
    logs = np.log([[row["devices"], row["traffic_bytes"], row["memory_bytes"]] for row in rows])
    slopes = [float(np.polyfit(logs[:, 0], logs[:, column], 1)[0]) for column in (1, 2)]
    return {"rows": rows, "traffic_exponent": slopes[0], "memory_exponent": slopes[1]}


def _row(num_devices: int) -> dict[str, Any]:
    cluster = Cluster("any", (Level("device", num_devices, 0.0, BYTES_PER_S),), DEVICE)
    model = BoxingModel(NetworkModel(cluster), cluster.mesh())
    num_bytes = 4 * SIDE * SIDE
    table = CountBoxing(model, (SIDE, SIDE), num_bytes, differentiable=False)
    rows, columns, inner = compositions(model.mesh.ndim, 3).T
    split = splits(table)
    read = table.cost_s(split, table.rows(S0=rows, B=columns, S1=inner)).min(axis=0)
    weight = table.cost_s(split, table.rows(B=rows, S1=columns, S0=inner)).min(axis=0)
    made = table.cost_s(table.rows(S0=rows, S1=columns, P=inner), split).min(axis=1)
    traffic = (read + weight + made) * BYTES_PER_S
    best = int(traffic.argmin())
    held = sum(num_bytes / 2.0 ** (model.mesh.ndim - int(copies[best])) for copies in (rows, columns, inner))
    return {
        "devices": num_devices,
        "p0_p1_p2": [2 ** int(part[best]) for part in (rows, columns, inner)],
        "traffic_bytes": float(traffic[best]),
        "memory_bytes": held,
    }
