"""Import an exported program into the IR, node by node, before the import passes run."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from math import isnan, nan
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from autosbp.errors import UnsupportedError
from autosbp.graph._exported_program import AUTOCAST, NO_GRAD, region_kind
from autosbp.graph._function_capture import NAMESPACE, FunctionCall, trace_function
from autosbp.graph.allowed_ops import ALLOWED_OPS
from autosbp.graph.custom_functions import CustomFunction
from autosbp.graph.ir import (
    DTYPE_BYTES,
    Arg,
    Constant,
    DType,
    Input,
    LogicalGraph,
    Node,
    Parameter,
    Ref,
    Sym,
    TensorMeta,
)
from autosbp.graph.symbolic_dims import evaluate
from autosbp.graph.to_fx import make_constant, torch_dtype

BATCH = "batch"
_EXAMPLE_BATCH = 4
_BATCHES = (37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131)
_BATCH_NORMS = (
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
    torch.ops.aten._native_batch_norm_legit_no_training.default,
)
_TORCH = str(Path(torch.__file__).parent)
_FIRST_OPERAND = {NO_GRAD: 2, AUTOCAST: 5}  # index of the first operand of a region's subgraph


class _UncapturableValue:
    """A value that a graph cannot hold; capture fails only if the loss uses it."""

    def __init__(self, error: UnsupportedError) -> None:
        self.error = error


class Importer:
    """Turns an exported program into the IR, without what only torch's tracing needs."""

    def __init__(
        self, module: torch.nn.Module, program: Any, input_high: dict[str, int], calls: Mapping[str, FunctionCall]
    ) -> None:
        self.module, self.program, self.input_high = module, program, input_high
        self.values: dict[Any, Arg] = {}
        self.nodes: list[Node] = []
        self.counts: dict[str, int] = {}
        self.here: Any = None
        self.calls = calls
        self.functions: dict[str, CustomFunction] = {}
        self.buffers: dict[str, str] = {}
        self.lines: dict[str, str] = {}
        """Where the user's code calls each op that graphs may not name, by node."""

    def run(self, name: str, provenance: dict[str, str]) -> LogicalGraph:
        parameters, inputs, constants = self._graph_inputs()
        outputs = self._body(self.program.graph)
        loss = self._loss(name, outputs)
        changed = [spec.target for spec in self.program.graph_signature.output_specs if "MUTATION" in spec.kind.name]
        if changed:
            self._refuse_stale(loss, changed)
            shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            provenance["not_updated"] = f"the forward pass also changes {shown}; trials do not update them"
        return LogicalGraph(
            name, {BATCH: _EXAMPLE_BATCH}, parameters, inputs, constants, tuple(self.nodes), loss, provenance,
            functions=self.functions,
        )  # fmt: skip

    def _graph_inputs(self) -> tuple[tuple[Parameter, ...], tuple[Input, ...], tuple[Constant, ...]]:
        parameters: dict[str, Parameter] = {}
        inputs: list[Input] = []
        constants: list[Constant] = []
        shared = {
            id(param): name for name, param in reversed(list(self.module.named_parameters(remove_duplicate=False)))
        }
        named = dict(self.module.named_parameters(remove_duplicate=False))
        placeholders = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        for spec in self.program.graph_signature.input_specs:
            fx_node = placeholders[spec.arg.name]
            value = fx_node.meta.get("val")
            if spec.kind == InputKind.PARAMETER:
                first = shared[id(named[spec.target])]
                parameter = Parameter(first, self._meta(value), first, trained=named[spec.target].requires_grad)
                parameters.setdefault(first, parameter)
                self.values[fx_node] = Ref(first)
            elif spec.kind == InputKind.USER_INPUT:
                if isinstance(spec.arg, ConstantArgument):  # a setting; its effect is part of the graph
                    continue
                if not isinstance(value, torch.Tensor):
                    raise UnsupportedError(f"input {spec.arg.name} is not a tensor")
                inputs.append(Input(spec.arg.name, self._meta(value), self.input_high.get(spec.arg.name)))
                self.values[fx_node] = Ref(spec.arg.name)
            elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                tensor = self._constant(spec.target)
                constants.append(make_constant(_clean(spec.arg.name), tensor))
                self.buffers[spec.target] = constants[-1].name
                self.values[fx_node] = Ref(constants[-1].name)
            else:
                raise UnsupportedError(f"input {spec.arg.name} of kind {spec.kind} cannot be captured")
        for spec in self.program.graph_signature.output_specs:
            if spec.kind == OutputKind.USER_INPUT_MUTATION:
                raise UnsupportedError(f"the module changes input {spec.target} in place; work on a copy")
            if spec.kind.name == "PARAMETER_MUTATION":
                raise UnsupportedError(
                    f"the forward pass changes parameter {spec.target}; change it after the optimizer step"
                )
        return tuple(parameters.values()), tuple(inputs), tuple(constants)

    def _loss(self, name: str, outputs: tuple[Any, ...]) -> Ref:
        """The loss: the module's first user output, after the new values of mutated buffers."""
        specs = self.program.graph_signature.output_specs
        own = [at for at, spec in enumerate(specs) if spec.kind == OutputKind.USER_OUTPUT]
        first: Any = outputs[own[0]] if own else None
        loss = self._arg(first)
        if not isinstance(loss, Ref):
            raise UnsupportedError(f"{name}: the module's first output must be the loss tensor; got {loss!r}")
        value = first.meta["val"]
        if value.numel() != 1 or not value.is_floating_point():
            shape = [str(size) for size in value.shape]
            raise UnsupportedError(
                f"{name}: the module's first output must be the loss, a float scalar; got {value.dtype} "
                f"[{', '.join(shape)}]"
            )
        if value.dim():
            self._add("aten.reshape.default", (loss, ()), {}, (TensorMeta((), self._meta(value).dtype),))
            return Ref(self.nodes[-1].name)
        return loss

    def _refuse_stale(self, loss: Ref, changed: list[str]) -> None:
        """Refuse a buffer that the forward pass changes and the loss reads: here it would keep its first value."""
        live = {loss.name}
        for node in reversed(self.nodes):
            if node.name in live:
                live.update(ref.name for ref in node.refs())
        for target, name in self.buffers.items():
            if target in changed and name in live:
                raise UnsupportedError(
                    f"the loss depends on buffer {target}, which the forward pass changes; make it an input or a "
                    "parameter, or update it outside the forward pass"
                )

    def _constant(self, target: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = operator.attrgetter(target)(self.module)
        except AttributeError:
            tensor = self.program.constants[target]
        if tensor.device.type == "meta":
            raise UnsupportedError(
                f"buffer {target} is on the meta device; move it to cpu, because its values are stored as constants"
            )
        return tensor

    def _body(self, graph: Any) -> tuple[Any, ...]:
        """Import every call; return the graph's outputs, unconverted."""
        for fx_node in graph.nodes:
            if fx_node.op == "output":
                outputs = fx_node.args[0]
                return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
            if fx_node.op == "call_function":
                self.here = fx_node
                try:
                    self.values[fx_node] = self._call(fx_node)
                except UnsupportedError as error:
                    self.values[fx_node] = _UncapturableValue(error)
        raise AssertionError("the exported graph has no output node")

    def _call(self, fx_node: Any) -> Any:
        target = fx_node.target
        value = fx_node.meta.get("val")
        if isinstance(value, (int, float)):
            return value
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return Sym(self._expression(value))
        if target is operator.getitem:
            source = self._arg(fx_node.args[0])
            return (
                self._unwrap(source[fx_node.args[1]])
                if isinstance(source, tuple)
                else Ref(source.name, fx_node.args[1])
            )
        if target in _BATCH_NORMS:
            return self._batch_norm(fx_node)
        if region_kind(fx_node) in _FIRST_OPERAND:
            return self._inline(fx_node)
        if isinstance(value, torch.SymBool):  # used by assertions only; tracing would have resolved a branch on it
            return None
        if not isinstance(target, torch._ops.OpOverload):
            raise UnsupportedError(
                f"{getattr(target, '__name__', target)} cannot be captured{_where(fx_node)}: graphs have no control "
                "flow; compute both branches and select with torch.where"
            )
        if value is None:  # assertions about shapes and metadata
            return None
        if target._schema.is_mutable and target is not torch.ops.aten.detach_.default:
            raise UnsupportedError(f"{target} changes its input in place{_where(fx_node)}; use the functional form")
        outputs = value if isinstance(value, (tuple, list)) else (value,)
        args, kwargs = _normalized_arguments(fx_node, self._arg)
        short = target._schema.name.split("::")[1]
        if target.namespace == NAMESPACE:
            return self._add(self._function(short, fx_node), args, {}, tuple(self._meta(item) for item in outputs))
        op = f"{target.namespace}.{short}.{target._overloadname or 'default'}"
        return self._add(op, args, kwargs, tuple(self._meta(item) for item in outputs))

    def _add(self, op: str, args: tuple[Arg, ...], kwargs: dict[str, Arg], outputs: tuple[TensorMeta, ...]) -> Ref:
        short = op.split(".")[1]
        self.counts[short] = self.counts.get(short, -1) + 1
        self.nodes.append(Node(f"{short}_{self.counts[short]}", op, args, kwargs, outputs))
        if op not in ALLOWED_OPS and self.here is not None:
            self.lines[self.nodes[-1].name] = _where(self.here)
        return Ref(self.nodes[-1].name)

    def _batch_norm(self, fx_node: Any) -> Any:
        """Batch norm as one op that updates no running statistics, and reads them only in evaluation mode."""
        names = [argument.name for argument in fx_node.target._schema.arguments]
        given = {**dict(zip(names, fx_node.args, strict=False)), **fx_node.kwargs}
        training = bool(given.get("training", False))
        running = (None, None) if training else (self._arg(given["running_mean"]), self._arg(given["running_var"]))
        args = (
            self._arg(given["input"]), self._arg(given["weight"]), self._arg(given["bias"]), *running, training,
            given["momentum"], given["eps"], False,
        )  # fmt: skip
        out = self._add("aten.batch_norm.default", args, {}, (self._meta(fx_node.meta["val"][0]),))
        others = UnsupportedError(f"updated batch norm statistics are read{_where(fx_node)}; compute them separately")
        return (out, *(_UncapturableValue(others) for _ in fx_node.meta["val"][1:]))

    def _inline(self, fx_node: Any) -> tuple[Any, ...]:
        """Inline a disabled autocast region, or a ``no_grad`` region (``_exported_program`` has detached its outputs)."""
        kind = region_kind(fx_node)
        if kind == AUTOCAST and fx_node.args[2] is not False:
            raise UnsupportedError(f"autocast{_where(fx_node)} could not be converted to casts; cast explicitly")
        begin = _FIRST_OPERAND[kind]
        submodule, operands = fx_node.args[begin - 1], fx_node.args[begin:]
        inner = getattr(fx_node.graph.owning_module, submodule.target)
        placeholders = [node for node in inner.graph.nodes if node.op == "placeholder"]
        for placeholder, operand in zip(placeholders, operands, strict=True):
            self.values[placeholder] = self.values[operand] if isinstance(operand, torch.fx.Node) else operand
        outputs = self._body(inner.graph)
        return tuple(self.values[each] if isinstance(each, torch.fx.Node) else each for each in outputs)

    def _function(self, short: str, fx_node: Any) -> str:
        """The op of a recorded call of an autograd function, whose body is traced at a batch that equals no other size."""
        shapes = [self._meta(node.meta["val"]) for node in fx_node.args]
        known = {dim for meta in shapes for dim in meta.shape if isinstance(dim, int)}
        batch = next(size for size in _BATCHES if not any(size % dim == 0 for dim in known if dim > 1))
        metas = [
            torch.empty(
                [evaluate(dim, {BATCH: batch}) for dim in meta.shape], dtype=torch_dtype(meta.dtype), device="meta"
            )
            for meta in shapes
        ]
        function = trace_function(self.calls[short], metas, _normalized_arguments)
        return self.functions.setdefault(function.name, function).name

    def _arg(self, arg: Any) -> Arg:
        if isinstance(arg, torch.fx.Node):
            return self._unwrap(self.values[arg])
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(item) for item in arg)
        if isinstance(arg, (torch.SymInt, torch.SymFloat)):
            return Sym(self._expression(arg))
        if isinstance(arg, torch.dtype):
            return DType(str(arg).removeprefix("torch."))
        if isinstance(arg, float) and isnan(arg):
            return nan  # one object, so that equal graphs compare equal
        if arg is None or isinstance(arg, (bool, int, float, str)):
            return arg
        if isinstance(arg, (torch.device, torch.layout, torch.memory_format)):
            return None
        raise UnsupportedError(f"an argument of type {type(arg).__name__} cannot be captured")

    def _unwrap(self, value: Any) -> Any:
        if isinstance(value, _UncapturableValue):
            raise value.error
        return value

    def _meta(self, value: Any) -> TensorMeta:
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError(f"an op returns {type(value).__name__}; only tensors can be captured")
        shape = tuple(dim if isinstance(dim, int) else self._expression(dim) for dim in value.shape)
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in DTYPE_BYTES:
            what = "" if self.here is None else f" of {self.here.target}{_where(self.here)}"
            raise UnsupportedError(f"dtype {dtype}{what} cannot be captured; expected one of {', '.join(DTYPE_BYTES)}")
        return TensorMeta(shape, dtype)

    def _expression(self, value: torch.SymInt | torch.SymFloat) -> str:
        """The symbolic size in terms of ``batch``; raise ``UnsupportedError`` for anything but sums of products."""
        text = re.sub(r"\bs\d+\b", BATCH, str(value.node.expr)).replace(" ", "")
        text = re.sub(r"ToFloat\(([^()]*)\)|\b1\.0\*", r"\1", text)
        what = "" if self.here is None else f" of {self.here.target}{_where(self.here)}"
        if re.search(r"\b(zu|u)\d+\b", text):
            raise UnsupportedError(
                f"a size{what} depends on tensor values; use a dense form, such as masks, one-hot or top-k with fixed k"
            )
        if not re.fullmatch(r"[\dbatch*+]+", text):
            raise UnsupportedError(
                f"the size {text}{what} depends on the batch in a way that cannot be planned; keep the batch as a "
                "separate dim"
            )
        return text


def _normalized_arguments(fx_node: Any, convert: Callable[[Any], Arg]) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
    """Positional arguments up to the last one given, keyword-only ones by name; without device, layout and copy."""
    schema = fx_node.target._schema.arguments
    positional: list[Arg] = []
    kwargs: dict[str, Arg] = {}
    given = len(fx_node.args)
    names = [argument.name for argument in schema if not argument.kwarg_only]
    last = max([given, *(names.index(key) + 1 for key in fx_node.kwargs if key in names)])
    for index, argument in enumerate(schema):
        if argument.name in ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"):
            continue
        if argument.kwarg_only:
            if argument.name in fx_node.kwargs:
                kwargs[argument.name] = convert(fx_node.kwargs[argument.name])
        elif index < given:
            positional.append(convert(fx_node.args[index]))
        elif index < last:
            positional.append(convert(fx_node.kwargs.get(argument.name, argument.default_value)))
    return tuple(positional), kwargs


def _where(fx_node: Any) -> str:
    """The line of the user's code that created a node, or else one of its operands."""
    for node in (fx_node, *reversed(fx_node.all_input_nodes)):
        trace = (node.meta.get("stack_trace") or "").splitlines()
        lines = [line.strip() for line in trace if line.strip().startswith("File") and 'File "<' not in line]
        if lines:
            own = [line for line in lines if _TORCH not in line]
            return f" at {(own or lines)[-1]}"
    return ""


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", name)
