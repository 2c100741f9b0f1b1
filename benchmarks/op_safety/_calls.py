"""Op calls with arguments at and beyond their limits.

They are drawn from the op's schema, or are samples of torch's own test suite with a few changes.
"""

from __future__ import annotations

import random
import signal
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

Call = tuple[list[Any], dict[str, Any]]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool)
_LIMITS = (0, 1, 2, 3, 4, 5, 7, 100, -1, -2, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
_USUAL = (0, 1, 1, 1, 2, 2, 3, 4, -1, -2)
_BEYOND = (-1, -2, 5, 11, 100, -100, 4096, -4097, 10**5, 2**20, 2**28, -(2**28), 2**31 - 1, 2**40, 2**63 - 1, -(2**63))
_WORDS = (
    "none", "mean", "sum", "linear", "floor", "trunc", "tanh", "zeros", "same", "valid", "ij", "reflect", "constant",
    "prod", "amax", "i,j->ij", "", "x" * 50, "fro", "nuc", "reduced", "max", "add", "multiply",
)  # fmt: skip
_WITHOUT = frozenset(("layout", "pin_memory", "memory_format", "device", "generator"))
MAX_ELEMENTS = 3000
SAMPLES, SAMPLE_S = 12, 10


def random_call(op: Any, draw: random.Random) -> Call:
    """Random arguments of the schema's types."""
    made = _Drawing(draw)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in op._schema.arguments:
        if argument.name in _WITHOUT or (argument.has_default_value() and draw.random() < 0.5):
            value = argument.default_value if argument.has_default_value() else None
        elif argument.name in ("dtype", "out_dtype"):
            value = draw.choice((None, *DTYPES))
        else:
            value = made.value(argument.type)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


class _Drawing:
    """Random values for one call, whose tensors often share a shape."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.wild = draw.choice((0.0, 0.1, 0.5))
        self.shape: list[int] | None = None

    def value(self, kind: Any) -> Any:
        """Value of a schema type."""
        match kind.kind():
            case "OptionalType":
                return None if self.draw.random() < 0.4 else self.value(kind.getElementType())
            case "ListType":
                return [self.value(kind.getElementType()) for _ in range(self.draw.choice((0, 1, 1, 2, 2, 3, 4)))]
            case "TensorType":
                return self.tensor()
            case "IntType" | "SymIntType":
                return self.draw.choice(_LIMITS if self.draw.random() < self.wild else _USUAL)
            case "FloatType":
                return self.draw.choice((0.0, 1.0, 0.5, -1.0, 2.0, 1e30))
            case "BoolType":
                return self.draw.random() < 0.5
            case "NumberType":
                return self.draw.choice((0, 1, 2, -1, 0.5, 3.0, 2**40, 1e30, True))
            case "StringType":
                return self.draw.choice(_WORDS)
        return None

    def tensor(self) -> torch.Tensor:
        """Tensor of the call's shape, or nearly."""
        if self.shape is None or self.draw.random() < 0.3:
            shape = [self.draw.choice((0, 1, 2, 2, 3, 4, 6)) for _ in range(self.draw.choice((0, 1, 1, 2, 2, 3, 4, 5)))]
            self.shape = self.shape or shape
        else:
            shape = list(self.shape)
            if shape and self.draw.random() < 0.25:
                shape[self.draw.randrange(len(shape))] = self.draw.choice((0, 1, 2, 3, 5))
        dtype = self.draw.choice(DTYPES)
        if dtype.is_floating_point or dtype == torch.bool:
            return torch.randn(shape).to(dtype)
        values = torch.tensor([self.draw.randrange(4) for _ in range(torch.Size(shape).numel())], dtype=dtype)
        return (
            out_of_range_integers(values, self.draw).reshape(shape)
            if self.draw.random() < 0.5
            else values.reshape(shape)
        )


def out_of_range_integers(values: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Flat copy with some integers that may be out of range."""
    flat = values.clone(memory_format=torch.contiguous_format).view(-1)
    held = torch.iinfo(values.dtype)
    for _ in range(draw.choice((1, 1, 2, len(flat))) if len(flat) else 0):
        value = draw.choice((*_BEYOND, len(flat), len(flat) + 1))
        flat[draw.randrange(len(flat))] = max(held.min, min(held.max, value))
    return flat


def mutated_call(calls: Sequence[Call], draw: random.Random) -> Call:
    """One of the calls with up to three of its leaves changed."""
    leaves, spec = pytree.tree_flatten(list(draw.choice(calls)))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3)) if leaves else 0):
        at = draw.randrange(len(leaves))
        leaves[at] = _other(leaves[at], draw)
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return args, kwargs


def _other(leaf: Any, draw: random.Random) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _other_tensor(leaf, draw)
    if isinstance(leaf, bool):
        return not leaf
    if isinstance(leaf, int):
        return draw.choice((*_LIMITS, leaf + 1, leaf - 1, -leaf, 2 * leaf))
    if isinstance(leaf, float):
        return draw.choice((0.0, -1.0, 1e30, 2 * leaf))
    return draw.choice((None, 0, 1, -1, 2**62)) if leaf is None else leaf


def _other_tensor(leaf: torch.Tensor, draw: random.Random) -> torch.Tensor:
    kind = draw.random()
    if leaf.dtype in (torch.int64, torch.int32) and leaf.numel() and kind < 0.6:
        return out_of_range_integers(leaf, draw).reshape(leaf.shape)
    if kind < 0.8 and leaf.dim():
        shape = list(leaf.shape)
        at = draw.randrange(leaf.dim())
        shape[at] = draw.choice((0, 1, max(0, shape[at] - 1), shape[at] + 1, 2 * shape[at], 3))
        size, flat = torch.Size(shape).numel(), leaf.reshape(-1)
        if size < 10**5:
            return (flat[torch.arange(size) % len(flat)] if len(flat) else leaf.new_zeros(size)).reshape(shape)
    if kind < 0.9:
        return (
            leaf.unsqueeze(draw.randrange(leaf.dim() + 1))
            if draw.random() < 0.5
            else leaf[0]
            if leaf.numel() and leaf.dim()
            else leaf
        )
    return leaf.to(draw.choice(DTYPES))


class _Recorder(torch.fx.Interpreter):
    """Records the op calls of a traced sample."""

    def __init__(self, program: torch.fx.GraphModule, found: dict[str, list[Call]], seen: set[str]) -> None:
        super().__init__(program)
        self.found, self.seen = found, seen

    def run_node(self, n: torch.fx.Node) -> Any:
        """Record and run a node."""
        if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            leaves, spec = pytree.tree_flatten([list(args), dict(kwargs)])
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            plain = all(
                leaf is None or isinstance(leaf, (torch.Tensor, int, float, str, torch.dtype)) for leaf in leaves
            )
            name = str(n.target)
            key = f"{name} {[tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]}"
            small = all(leaf.numel() < MAX_ELEMENTS and leaf.layout == torch.strided for leaf in tensors)
            if plain and small and key not in self.seen and len(self.found[name]) < SAMPLES:
                self.seen.add(key)
                kept = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
                self.found[name].append(tuple(pytree.tree_unflatten(kept, spec)))
        return super().run_node(n)


def samples() -> Mapping[str, Sequence[Call]]:
    """ATen calls made by torch's own samples of its functions (``OpInfo``), by op name. Takes minutes."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, list[Call]] = defaultdict(list)
    seen: set[str] = set()
    signal.signal(signal.SIGALRM, _give_up)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in op_db:
            for dtype in {torch.float32, torch.int64} & set(info.dtypes):
                _sample(info, dtype, found, seen)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    more = {name: list(_recurrent(name)) for name in _GATES} | {
        name: [call] for name, call in _handwritten_calls().items()
    }
    return more | found


_GATES = {"aten.lstm.input": 4, "aten.gru.input": 3, "aten.rnn_tanh.input": 1, "aten.rnn_relu.input": 1}


def _recurrent(name: str) -> Iterator[Call]:
    """Calls of recurrent layers, which torch's samples lack."""
    rows = 5 * _GATES[name]
    for biases, layers, two_ways in ((True, 1, False), (False, 2, True)):
        states = [torch.randn(layers * (1 + two_ways), 2, 5) for _ in range(2)]
        sizes = [3 if not layer else 5 * (1 + two_ways) for layer in range(layers) for _ in range(1 + two_ways)]
        weights = [
            torch.randn(shape)
            for size in sizes
            for shape in [(rows, size), (rows, 5), *([(rows,)] * 2 if biases else [])]
        ]
        given: Any = states if name == "aten.lstm.input" else states[0]
        yield [torch.randn(4, 2, 3), given, weights, biases, layers, 0.0, False, two_ways, False], {}


def _handwritten_calls() -> Mapping[str, Call]:
    """Further hand-written calls that the samples lack."""
    made, index = torch.randn, torch.tensor([[0, 1], [1, 0]])
    cell = {
        gates: [made(2, 3), made(2, 5), made(5 * gates, 3), made(5 * gates, 5), made(5 * gates), made(5 * gates)]
        for gates in (1, 3, 4)
    }
    image, rays = made(2, 3, 8, 8), made(2, 3, 6, 6, 6)
    calls: dict[str, list[Any]] = {
        "rnn_tanh_cell.default": cell[1],
        "rnn_relu_cell.default": cell[1],
        "gru_cell.default": cell[3],
        "lstm_cell.default": [cell[4][0], [made(2, 5), made(2, 5)], *cell[4][2:]],
        **{f"{kind}.default": [made(3, 4), torch.tensor([0.5]), 1] for kind in ("quantile", "nanquantile")},
        "conv_tbc.default": [made(5, 2, 3), made(3, 3, 4), made(4)],
        "col2im.default": [made(1, 12, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]],
        "index_reduce.default": [made(3, 4), 0, torch.tensor([0, 2]), made(2, 4), "prod"],
        "index_fill.int_Scalar": [made(3, 4), 0, torch.tensor([0, 2]), 1.5],
        "scatter.reduce": [made(3, 2), 0, index, made(2, 2)],
        "scatter.value_reduce": [made(3, 2), 0, index, 2.0],
        "searchsorted.Scalar": [torch.arange(6.0), 2.5],
        "upsample_nearest2d.default": [image, [4, 16]],
        "upsample_bicubic2d.default": [image, [4, 16], False],
        "upsample_bilinear2d.default": [image, [4, 16], True],
        "upsample_trilinear3d.default": [rays, [3, 3, 12], False],
        **{f"{kind}_pad2d.default": [image, [1, 2, 0, 3]] for kind in ("reflection", "replication")},
        **{f"{kind}_pad3d.default": [rays, [1, 2, 0, 3, 1, 1]] for kind in ("reflection", "replication")},
        **{
            f"nll_loss{form}.default": [made(2, 4, *more), torch.zeros(2, *more, dtype=torch.int64), None, 1, -100]
            for form, more in (("", ()), ("_forward", ()), ("2d", (3, 3)), ("2d_forward", (3, 3)))
        },
    }
    keywords = {"scatter.reduce": {"reduce": "add"}, "scatter.value_reduce": {"reduce": "multiply"}}
    return {f"aten.{name}": (args, dict[str, Any](keywords.get(name, {}))) for name, args in calls.items()}


class _TooLongError(Exception):
    pass


def _give_up(*_: object) -> None:
    raise _TooLongError


def _sample(info: Any, dtype: torch.dtype, found: dict[str, list[Call]], seen: set[str]) -> None:
    """Record the calls of a sample; skip it if it cannot be traced or takes too long."""
    signal.setitimer(signal.ITIMER_REAL, SAMPLE_S)
    try:
        for at, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=False)):
            if at == SAMPLES:
                break
            signal.setitimer(signal.ITIMER_REAL, SAMPLE_S)
            leaves, spec = pytree.tree_flatten([sample.input, sample.args, sample.kwargs])
            places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

            def call(*tensors: torch.Tensor, leaves: Any = leaves, spec: Any = spec, places: Any = places) -> Any:
                given = list(leaves)
                for place, tensor in zip(places, tensors, strict=True):
                    given[place] = tensor
                first, args, kwargs = pytree.tree_unflatten(given, spec)
                return info.op(first, *args, **kwargs)

            tensors = [leaves[place] for place in places]
            try:
                _Recorder(make_fx(call, pre_dispatch=True)(*tensors), found, seen).run(*tensors)
            except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError, AttributeError):
                continue
    except (_TooLongError, RuntimeError, AssertionError, ImportError):
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
