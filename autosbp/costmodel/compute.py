"""Time of one op on one device: measured if a calibration has its local shape, else a roofline.

Without op measurements, a device's efficiency curves (``costmodel.efficiency``) scale the roofline; a calibration of
ops replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster.spec import Device
from autosbp.costmodel.calibration import Calibration, OpTime
from autosbp.costmodel.compute_contention import ComputeSharing
from autosbp.costmodel.efficiency import peak_flops, roofline_s
from autosbp.costmodel.efficiency_interpolation import EfficiencyCurve
from autosbp.costmodel.float8 import KERNELS_PER_TENSOR, SCALED_BACKWARD, SCALED_FORWARD
from autosbp.costmodel.op_flops import op_work
from autosbp.costmodel.overlap import Overlap
from autosbp.graph.int_attributes import Path, divide_attribute
from autosbp.graph.ir import Arg, DType, Node, Ref
from autosbp.utils.json_io import canonical, tagged_number

# Backward FLOPs per forward FLOP if both operands need a gradient: two matmuls of the same size (Kaplan et al. 2020,
# section 2.1); attention recomputes its scores (Dao 2023, section 3.1).
BACKWARD_FLOPS: Mapping[str, float] = {"aten.scaled_dot_product_attention.default": 2.5}
ONE_LAUNCH = (1.0, 1.0)
SIZE_ARGUMENTS: Mapping[str, int] = {"aten.reshape.default": 1, "aten.expand.default": 1}
"""Position of the argument that must become the local output shape."""

_PICK_FIRST_DIM = frozenset(("aten.embedding.default",))
_PICK_DIM = frozenset(
    f"aten.{name}" for name in (
        "gather.default", "index_select.default", "scatter.src", "scatter.value", "scatter_add.default", "index_add.default",
        "scatter_reduce.two",
    )
)  # fmt: skip
_PICK_ANY_DIM = frozenset(("aten.index.Tensor", "aten.index_put.default"))


def op_key(
    node: Node,
    ins: Sequence[tuple[int, ...]],
    out: tuple[int, ...],
    dtypes: Sequence[str],
    grads: Sequence[bool],
    highs: Sequence[int | None],
) -> str:
    """Identity of a timed op: its arguments with local shapes, as canonical JSON (see ``costmodel.op_benchmark``).

    ``highs`` are exclusive upper bounds of integer tensors; indices along a dim are also limited to that dim's local
    size.
    """
    position = -1
    limit = _picked_size(node, ins[0]) if ins else None
    if limit is not None:
        highs = [None if high is None else min(high, limit) for high in highs]

    def encode(arg: Arg) -> Any:
        nonlocal position
        if isinstance(arg, Ref):
            position += 1
            tensor: dict[str, Any] = {"t": list(ins[position]), "d": dtypes[position], "g": grads[position]}
            return {**tensor, "hi": highs[position]} if highs[position] is not None else tensor
        if isinstance(arg, DType):
            return {"dtype": arg.name}
        if isinstance(arg, tuple):
            return [encode(item) for item in arg]
        return tagged_number(arg) if isinstance(arg, float) else arg

    args = [encode(arg) for arg in node.args]
    if node.op in SIZE_ARGUMENTS:
        args[SIZE_ARGUMENTS[node.op]] = list(out)
    kwargs = {key: encode(arg) for key, arg in node.kwargs.items()}
    return canonical({"op": node.op, "args": args, "kwargs": kwargs}).decode()


def _picked_size(node: Node, shape: tuple[int, ...]) -> int | None:
    """Smallest size of the dims that indices select from; larger indices cause a sticky GPU error."""
    if node.op in _PICK_FIRST_DIM:
        return shape[0]
    if node.op in _PICK_DIM and type(node.args[1]) is int:
        return shape[node.args[1]] if shape else 1
    return min(shape, default=1) if node.op in _PICK_ANY_DIM else None


def with_local_attributes(node: Node, paths: Sequence[tuple[Path, int]]) -> Node:
    """The node with local integer attributes: those at ``paths`` are divided by the number of parts."""
    for path, parts in paths:
        args, kwargs = divide_attribute(node.args, node.kwargs, path, parts)
        node = replace(node, args=args, kwargs=kwargs)
    return node


def _sharing(device: Device, calibration: Calibration) -> ComputeSharing | None:
    if calibration.sharing is not None and calibration.sharing.shares:
        return calibration.sharing
    if device.kind != "cpu" or calibration.overlap is None or not calibration.overlap.message:
        return None
    return ComputeSharing(1.0, tuple(range(calibration.cluster.num_devices)))


def _scaled(calibration: Calibration) -> Mapping[str, OpTime]:
    scale = calibration.correction.compute
    if scale == 1.0:
        return calibration.ops
    return {key: OpTime(scale * time.forward_s, scale * time.backward_s) for key, time in calibration.ops.items()}


class ComputeModel:
    """Seconds of ops on one device.

    With a calibration of ops, an op at a measured local shape takes the measured time. Any other op takes its roofline
    time multiplied by the measured/roofline ratio of the same op (else of all ops of its kind) at similar sizes
    (``costmodel.efficiency_interpolation``). ``sharing`` describes ranks that share hardware with each other or, on
    CPUs, with their messages; None if none do.
    """

    def __init__(self, device: Device, calibration: Calibration | None = None) -> None:
        self.device = device
        self.scale = 1.0 if calibration is None else calibration.correction.compute
        self.measured: Mapping[str, OpTime] = {} if calibration is None else _scaled(calibration)
        self.curves = None if self.measured else device.curves
        self._overlap = None if calibration is None else calibration.overlap
        self.sharing = None if calibration is None else _sharing(device, calibration)
        self.launches = None if calibration is None else calibration.launches
        self._forward: dict[str, EfficiencyCurve] = {}
        self._backward: dict[str, EfficiencyCurve] = {}
        self._learn()

    def _learn(self) -> None:
        """Fit efficiency curves, measured against roofline times, per op and per kind of op (with or without matmuls)."""
        rows: dict[str, list[tuple[float, float, float, float]]] = {}
        for key, time in self.measured.items():
            work = op_work(key)
            if work is None:
                continue
            forward, backward = self._roofline(work.op, work.dtype, np.array([work.flops]), np.array([work.num_bytes]))
            row = (float(forward[0]), time.forward_s, float(backward[0]), time.backward_s)
            for name in (work.op, "products" if work.flops else "others"):
                rows.setdefault(name, []).append(row)
        for name, found in rows.items():
            table = np.array(found)
            for curves, at in ((self._forward, 0), (self._backward, 2)):
                # Ops whose inputs need no gradient have no backward time.
                timed = table[table[:, at + 1] > 0]
                if len(timed):
                    curves[name] = EfficiencyCurve(timed[:, at], timed[:, at + 1])

    @property
    def overlap(self) -> Overlap:
        """Mutual slowdown of ops and collectives: from the calibration, else from the device's curves."""
        return self._overlap or Overlap(self.device.curves.contention if self.device.curves else 0.0)

    @property
    def copy_bytes_per_s(self) -> float:
        """Bytes per second of a plain local copy, with all ranks busy."""
        reached = self.device.memory_bandwidth_bytes_per_s * (self.curves.memory if self.curves else 1.0)
        copies = self._forward.get("aten.add.Tensor", self._forward.get("others"))
        return reached / copies.median_ratio if copies else reached

    def flops_per_s(self, dtype: str) -> float:
        """FLOP/s of a large matmul, before any correction."""
        return peak_flops(self.device, dtype) * (self.curves.matmul if self.curves else self.device.efficiency)

    def _roofline(
        self,
        op: str,
        dtype: str,
        flops: NDArray[np.float64],
        num_bytes: NDArray[np.float64],
        launches: tuple[float, float] = ONE_LAUNCH,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        device, factor = self.device, max(BACKWARD_FLOPS.get(op, 2.0), launches[1] / max(launches[0], 1.0))
        if self.curves:
            work_s = roofline_s(device, self.curves, dtype, flops, num_bytes)
        else:
            work_s = np.maximum(flops / self.flops_per_s(dtype), num_bytes / device.memory_bandwidth_bytes_per_s)
        forward_s, backward_s = (count * device.op_overhead_s for count in launches)
        return self.scale * (work_s + forward_s), self.scale * (factor * work_s + backward_s)

    def roofline_s(
        self,
        op: str,
        dtype: str,
        flops: NDArray[np.float64],
        num_bytes: NDArray[np.float64],
        launches: tuple[float, float] = ONE_LAUNCH,
        scaling_bytes: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Forward and backward seconds for arrays of local FLOPs and bytes moved, corrected by measurements.

        ``scaling_bytes`` are those that the scaling of a product in float8 moves (``costmodel.float8``).
        """
        forward, backward = self._roofline(op, dtype, flops, num_bytes, launches)
        name = op if op in self._forward else "products" if np.any(flops > 0) else "others"
        if name in self._forward:
            forward = forward * self._forward[name].at(forward)
            backward = backward * (self._backward[name].at(backward) if name in self._backward else 0.0)
        if scaling_bytes is not None:
            forward = forward + self._scaling_s(dtype, scaling_bytes[0], SCALED_FORWARD)
            backward = backward + self._scaling_s(dtype, scaling_bytes[1], SCALED_BACKWARD)
        return forward, backward

    def _scaling_s(self, dtype: str, num_bytes: NDArray[np.float64], num_tensors: int) -> NDArray[np.float64]:
        """Seconds of the kernels that scale tensors: passes over memory."""
        launches = (float(KERNELS_PER_TENSOR * num_tensors), 0.0)
        return self.roofline_s("scaling", dtype, np.zeros_like(num_bytes), num_bytes, launches)[0]

    def key_times_s(self, key: str) -> tuple[float, float] | None:
        """Forward and backward seconds of the op with this ``op_key``; None if the key does not determine its work."""
        if key in self.measured:
            return self.measured[key].forward_s, self.measured[key].backward_s
        work = op_work(key)
        if work is None:
            return None
        forward, backward = self.roofline_s(work.op, work.dtype, np.array([work.flops]), np.array([work.num_bytes]))
        return float(forward[0]), float(backward[0])

    def optimizer_s(self, moved_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of optimizer steps that read and write ``moved_bytes`` (``costmodel.optimizer``)."""
        return self.device.op_overhead_s + moved_bytes / self.copy_bytes_per_s
