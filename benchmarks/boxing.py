"""Planned boxing against OneFlow's choice: ``python -m benchmarks.boxing [--json]``.

OneFlow takes the direct transfer if there is one, else the cheapest path over one intermediate layout. Here it may use
all of our steps, on layouts that nest in mesh order. For every pair of layouts of some tensors on some clusters, this
reports how often no intermediate layout gives a path, how often the planned path is cheaper than OneFlow's choice
("both": than either of its two options), and by how much. Times are forward plus backward under alpha and beta.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.boxing import BoxingModel, BoxingTable
from autosbp.costmodel.network import NetworkModel
from autosbp.sbp.layout import format_nd_sbp, parse_nd_sbp
from autosbp.sbp.mesh import Axis, Mesh

ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor on a mesh of a cluster preset; ``axes`` are (size, cluster level) pairs."""

    cluster: str
    axes: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]

    @property
    def mesh(self) -> Mesh:
        counts = tuple(level.count for level in load_cluster(self.cluster).levels)
        return Mesh(tuple(Axis(f"a{at}", size, level) for at, (size, level) in enumerate(self.axes)), counts)

    @property
    def mesh_text(self) -> str:
        return "x".join(str(size) for size, _ in self.axes)

    def table(self) -> BoxingTable:
        model = BoxingModel(NetworkModel(load_cluster(self.cluster)), self.mesh)
        return model.table(self.shape, ELEMENT_BYTES * prod(self.shape), True)


SHAPES = ((768, 768), (768, 6144), (6144, 49152))
TENSORS = tuple(
    Tensor(cluster, axes, shape)
    for cluster, axes in (
        ("dgx-a100-80g:1", ((2, 1), (4, 1))),
        ("dgx-a100-80g:4", ((4, 0), (8, 1))),
        ("dgx-a100-80g:3", ((3, 0), (2, 1), (4, 1))),
        ("gcp-a100-16:2", ((2, 0), (4, 1), (4, 1))),
        ("piz-daint:64", ((8, 0), (8, 0))),
    )
    for shape in SHAPES
)


@dataclass(frozen=True, slots=True)
class Case:
    """A change of layout for which OneFlow's choice is more expensive."""

    tensor: Tensor
    src: str
    dst: str


NODES, EIGHT = (("dgx-a100-80g:4", ((4, 0), (8, 1)))), (("dgx-a100-80g:1", ((2, 1), (4, 1))))
CASES = (
    Case(Tensor(*NODES, SHAPES[2]), "P,P", "B,B"),
    Case(Tensor(*NODES, SHAPES[1]), "P,P", "S0,B"),
    Case(Tensor(*NODES, SHAPES[2]), "S0,S0", "B,S0"),
    Case(Tensor(*NODES, SHAPES[1]), "S0,P", "B,S0"),
    Case(Tensor(*EIGHT, SHAPES[1]), "S0,S0", "S1,S0"),
    Case(Tensor(*EIGHT, SHAPES[1]), "S0,S1", "S1,S0"),
    Case(Tensor(*NODES, SHAPES[2]), "I,S1", "S1,I"),
    Case(Tensor(*EIGHT, SHAPES[1]), "P,I", "B,I"),
)
"""Reasons: hierarchical reductions, other nesting orders, several intermediate layouts, a slow direct path."""


def oneflow_s(table: BoxingTable) -> NDArray[np.float64]:
    """Seconds of OneFlow's choice between every two layouts; infinite if it has neither option."""
    chosen = np.where(np.isfinite(table.step_s), table.step_s, via_one_intermediate_s(table))
    np.fill_diagonal(chosen, 0.0)
    return chosen


def via_one_intermediate_s(table: BoxingTable) -> NDArray[np.float64]:
    """Seconds of two steps over the cheapest intermediate layout."""
    return np.array([(row[:, None] + table.step_s).min(axis=0) for row in table.step_s])


@dataclass(frozen=True, slots=True)
class Row:
    """Counts over all pairs of different layouts of one tensor.

    Ratios are OneFlow's time over ours, for pairs where ours is lower.
    """

    cluster: str
    mesh: str
    shape: str
    pairs: int
    without_a_path: int
    dearer: int
    cheaper: int
    cheaper_than_both: int
    median_ratio: float
    max_ratio: float


def measure(tensor: Tensor) -> Row:
    table = tensor.table()
    theirs, ours = oneflow_s(table), table.cost_s
    better = np.minimum(theirs, via_one_intermediate_s(table))
    asked = ~np.eye(len(ours), dtype=bool)
    found = asked & np.isfinite(theirs)
    ratio = theirs[found] / ours[found]
    cheaper = ratio > 1 + 1e-9
    return Row(
        tensor.cluster,
        tensor.mesh_text,
        "x".join(map(str, tensor.shape)),
        pairs=int(asked.sum()),
        without_a_path=int((asked & ~found).sum()),
        dearer=int((ratio < 1 - 1e-9).sum()),
        cheaper=int(cheaper.sum()),
        cheaper_than_both=int((better[found] / ours[found] > 1 + 1e-9).sum()),
        median_ratio=float(np.median(ratio[cheaper])) if cheaper.any() else 1.0,
        max_ratio=float(ratio.max()),
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one case: OneFlow's choice (None if it has none), the planned path, and that path."""

    src: str
    dst: str
    oneflow_s: float | None
    planned_s: float
    path: str


def costs(case: Case) -> Costs:
    table = case.tensor.table()
    src, dst = parse_nd_sbp(case.src), parse_nd_sbp(case.dst)
    at = table.index[src], table.index[dst]
    theirs = float(oneflow_s(table)[at])
    path = " -> ".join(format_nd_sbp(layout) for layout in (src, *(step.dst for step in table.path(src, dst))))
    return Costs(case.src, case.dst, theirs if np.isfinite(theirs) else None, float(table.cost_s[at]), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    arguments = parser.parse_args()
    print(
        f"{'cluster':<16} {'mesh':<6} {'shape':<12} {'pairs':>6} {'no path':>8} {'cheaper':>8} {'both':>6} "
        f"{'median x':>9} {'max x':>7}"
    )
    rows = []
    for tensor in TENSORS:
        row = measure(tensor)
        rows.append(row)
        print(
            f"{row.cluster:<16} {row.mesh:<6} {row.shape:<12} {row.pairs:>6} {row.without_a_path:>8} {row.cheaper:>8} "
            f"{row.cheaper_than_both:>6} {row.median_ratio:>9.2f} {row.max_ratio:>7.2f}",
            flush=True,
        )
    print(f"\n{'mesh':<6} {'shape':<12} {'from':<6} {'to':<6} {'OneFlow us':>11} {'planned us':>11}  path")
    cases = [costs(case) for case in CASES]
    for case, found in zip(CASES, cases, strict=True):
        theirs = "none" if found.oneflow_s is None else f"{found.oneflow_s * 1e6:.1f}"
        print(
            f"{case.tensor.mesh_text:<6} {'x'.join(map(str, case.tensor.shape)):<12} {found.src:<6} {found.dst:<6} "
            f"{theirs:>11} {found.planned_s * 1e6:>11.1f}  {found.path}"
        )
    if arguments.json:
        document = {
            "benchmark": "boxing",
            "rows": [asdict(row) for row in rows],
            "cases": [asdict(one) for one in cases],
        }
        print(json.dumps(document))


if __name__ == "__main__":
    main()
