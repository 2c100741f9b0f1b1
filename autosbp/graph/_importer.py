"""An exported program becomes the IR, node by node, before the import passes."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from autosbp.errors import UnsupportedError
from autosbp.graph.ir import Arg, Constant, DType, Input, LogicalGraph, Node, Parameter, Ref, Sym, TensorMeta
from autosbp.graph.materialise import make_constant

BATCH = "batch"
_EXAMPLE_BATCH = 4
_BATCH_NORMS = (
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
)


class Importer:
    """Turns an exported program into the IR, dropping what only torch's tracing needs."""

    def __init__(self, module: torch.nn.Module, program: Any, input_high: dict[str, int]) -> None:
        self.module, self.program, self.input_high = module, program, input_high
        self.values: dict[Any, Arg] = {}
        self.nodes: list[Node] = []
        self.counts: dict[str, int] = {}
        self.here: Any = None

    def run(self, name: str, provenance: dict[str, str]) -> LogicalGraph:
        parameters, inputs, constants = self._leaves()
        outputs = self._body(self.program.graph)
        loss = self._loss(outputs)
        if not isinstance(loss, Ref):
            raise UnsupportedError(f"{name}: the module's first output must be the loss tensor, not {loss!r}")
        changed = [spec.target for spec in self.program.graph_signature.output_specs if "MUTATION" in spec.kind.name]
        if changed:
            shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            provenance["not_updated"] = f"the forward pass also changes {shown}; training here leaves them as they are"
        return LogicalGraph(
            name, {BATCH: _EXAMPLE_BATCH}, parameters, inputs, constants, tuple(self.nodes), loss, provenance
        )

    def _leaves(self) -> tuple[tuple[Parameter, ...], tuple[Input, ...], tuple[Constant, ...]]:
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
                if not isinstance(value, torch.Tensor):
                    raise UnsupportedError(f"input {spec.arg.name} is not a tensor")
                inputs.append(Input(spec.arg.name, self._meta(value), self.input_high.get(spec.arg.name)))
                self.values[fx_node] = Ref(spec.arg.name)
            elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                tensor = self._constant(spec.target)
                constants.append(make_constant(_clean(spec.arg.name), tensor))
                self.values[fx_node] = Ref(constants[-1].name)
            else:
                raise UnsupportedError(f"input {spec.arg.name} of kind {spec.kind} cannot be captured")
        for spec in self.program.graph_signature.output_specs:
            if spec.kind == OutputKind.USER_INPUT_MUTATION:
                raise UnsupportedError(f"the input {spec.target} is changed in place; work on a copy of it")
        return tuple(parameters.values()), tuple(inputs), tuple(constants)

    def _loss(self, outputs: Arg) -> Arg:
        """The module's first own output: what comes before it are buffers' new values."""
        specs = self.program.graph_signature.output_specs
        own = [at for at, spec in enumerate(specs) if spec.kind == OutputKind.USER_OUTPUT]
        if not isinstance(outputs, tuple):
            return outputs
        return outputs[own[0]] if own and own[0] < len(outputs) else None

    def _constant(self, target: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = operator.attrgetter(target)(self.module)
        except AttributeError:
            tensor = self.program.constants[target]
        if tensor.device.type == "meta":
            raise UnsupportedError(f"buffer {target} is on the meta device; its values are needed as constants")
        return tensor

    def _body(self, graph: Any) -> Arg:
        for fx_node in graph.nodes:
            if fx_node.op == "output":
                return self._arg(fx_node.args[0])
            if fx_node.op == "call_function":
                self.here = fx_node
                self.values[fx_node] = self._call(fx_node)
        raise AssertionError("an exported graph ends in its output")

    def _call(self, fx_node: Any) -> Arg:
        target = fx_node.target
        value = fx_node.meta.get("val")
        if isinstance(value, (int, float)):
            return value
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return Sym(self._expression(value))
        if target is operator.getitem:
            source = self._arg(fx_node.args[0])
            return source[fx_node.args[1]] if isinstance(source, tuple) else Ref(source.name, fx_node.args[1])
        if target in _BATCH_NORMS:
            return self._batch_norm(fx_node)
        if target is torch.ops.aten.native_dropout.default:
            args = (self._arg(fx_node.args[0]), fx_node.args[1], True)
            return (self._add("dropout", "aten.dropout.default", args, value[0]), None)
        if getattr(target, "__name__", "") == "wrap_with_set_grad_enabled":
            return self._inline(fx_node)
        if not isinstance(target, torch._ops.OpOverload):
            raise UnsupportedError(
                f"{getattr(target, '__name__', target)} cannot be captured{_where(fx_node)}; control flow has no place in "
                "a graph: write both branches and choose with torch.where"
            )
        if value is None:  # assertions about shapes and metadata
            return None
        if target._schema.is_mutable and target is not torch.ops.aten.detach_.default:
            raise UnsupportedError(f"{target} changes its input in place{_where(fx_node)}; use the functional form")
        outputs = value if isinstance(value, (tuple, list)) else (value,)
        args, kwargs = self._normalised(fx_node)
        short = target._schema.name.split("::")[1]
        self.counts[short] = self.counts.get(short, -1) + 1
        op = f"{target.namespace}.{short}.{target._overloadname or 'default'}"
        node = Node(f"{short}_{self.counts[short]}", op, args, kwargs, tuple(self._meta(item) for item in outputs))
        self.nodes.append(node)
        return Ref(node.name)

    def _batch_norm(self, fx_node: Any) -> Arg:
        """Batch norm with the batch's statistics, as one op that neither reads nor writes running ones."""
        source, weight, bias = (self._arg(arg) for arg in fx_node.args[:3])
        training, momentum, eps = fx_node.args[5:8]
        if not training:
            raise UnsupportedError(f"batch norm without training statistics cannot be captured{_where(fx_node)}")
        args = (source, weight, bias, None, None, True, momentum, eps, False)
        out = self._add("batch_norm", "aten.batch_norm.default", args, fx_node.meta["val"][0])
        return (out, None, None, None, None)

    def _add(self, short: str, op: str, args: tuple[Arg, ...], value: torch.Tensor) -> Ref:
        """A node of one output, named by its op and order."""
        self.counts[short] = self.counts.get(short, -1) + 1
        self.nodes.append(Node(f"{short}_{self.counts[short]}", op, args, {}, (self._meta(value),)))
        return Ref(self.nodes[-1].name)

    def _inline(self, fx_node: Any) -> Arg:
        """A no-grad region is inlined: nothing in it may depend on a parameter, so its gradient is empty anyway."""
        submodule, operands = fx_node.args[1], fx_node.args[2:]
        inner = getattr(fx_node.graph.owning_module, submodule.target)
        placeholders = [node for node in inner.graph.nodes if node.op == "placeholder"]
        for placeholder, operand in zip(placeholders, operands, strict=True):
            self.values[placeholder] = self._arg(operand)
        return self._body(inner.graph)

    def _normalised(self, fx_node: Any) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
        """Arguments by position up to the last one given, keyword-only ones by name; placement arguments dropped."""
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
                    kwargs[argument.name] = self._arg(fx_node.kwargs[argument.name])
            elif index < given:
                positional.append(self._arg(fx_node.args[index]))
            elif index < last:
                positional.append(self._arg(fx_node.kwargs.get(argument.name, argument.default_value)))
        return tuple(positional), kwargs

    def _arg(self, arg: Any) -> Arg:
        if isinstance(arg, torch.fx.Node):
            return self.values[arg]
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(item) for item in arg)
        if isinstance(arg, (torch.SymInt, torch.SymFloat)):
            return Sym(self._expression(arg))
        if isinstance(arg, torch.dtype):
            return DType(str(arg).removeprefix("torch."))
        if arg is None or isinstance(arg, (bool, int, float, str)):
            return arg
        if isinstance(arg, (torch.device, torch.layout, torch.memory_format)):
            return None
        raise UnsupportedError(f"an argument of type {type(arg).__name__} cannot be captured")

    def _meta(self, value: Any) -> TensorMeta:
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError(f"an op returns {type(value).__name__}; only tensors can be captured")
        shape = tuple(dim if isinstance(dim, int) else self._expression(dim) for dim in value.shape)
        return TensorMeta(shape, str(value.dtype).removeprefix("torch."))

    def _expression(self, value: torch.SymInt | torch.SymFloat) -> str:
        """The symbolic size in terms of ``batch``; anything but sums of products is refused."""
        text = re.sub(r"\bs\d+\b", BATCH, str(value.node.expr)).replace(" ", "")
        text = re.sub(r"ToFloat\(([^()]*)\)|\b1\.0\*", r"\1", text)
        what = "" if self.here is None else f" of {self.here.target}{_where(self.here)}"
        if re.search(r"\b(zu|u)\d+\b", text):
            raise UnsupportedError(
                f"a size{what} depends on values; use a dense form, such as masks, one-hot or top-k of fixed k"
            )
        if not re.fullmatch(r"[\dbatch*+]+", text):
            raise UnsupportedError(
                f"the size {text}{what} depends on the batch in a way that cannot be planned; keep the batch a dim of its own"
            )
        return text


def _where(fx_node: Any) -> str:
    trace = fx_node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File")]
    return f" at {lines[-1]}" if lines else ""


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", name)
