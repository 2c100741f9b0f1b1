"""Capture of a model's own ``torch.autograd.Function``, and of torch's ``scan``: each call becomes one op with its backward.

While a model is traced, a call of such a class is recorded and traced as an opaque op; its forward pass, which torch
would otherwise trace without the class's backward, runs for shapes only. Afterwards forward and backward are traced into
one body (``autosbp.graph.custom_functions``), with sizes that follow the arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from autosbp.errors import AutosbpError, UnsupportedError
from autosbp.graph._scan_capture import ScanCall, backward_decompositions, recorded_scans, scan_call
from autosbp.graph.allowed_ops import ALLOWED_OPS
from autosbp.graph.custom_functions import INT_OPS, CustomFunction, intern_function
from autosbp.utils.json_io import tagged_number

NAMESPACE = "autosbp_function"
Convert = Callable[[Any], Any]


@dataclass
class FunctionCall:
    """One recorded call: the class, its arguments with slots for tensors, and what its forward pass returned."""

    cls: Any
    args: tuple[Any, ...]
    needs_gradient: tuple[bool, ...]
    returns_tuple: bool = False

    @property
    def label(self) -> str:
        return str(self.cls.__name__)[:128]

    @property
    def where(self) -> str:
        """The class and the line of its source."""
        try:
            file, line = inspect.getsourcefile(self.cls), inspect.getsourcelines(self.cls)[1]
        except (OSError, TypeError):
            return f"the autograd function {self.cls.__qualname__}"
        return f'the autograd function {self.cls.__qualname__} at File "{file}", line {line}'

    def refuse(self, reason: str) -> UnsupportedError:
        """The error for a function that cannot be an op."""
        return UnsupportedError(
            f"{self.where} cannot be captured with its own backward: {reason}; write it as ops of torch (a straight-through "
            "estimator is x + (f(x) - x).detach()), or as an op of your own with torch.library"
        )

    def forward(self, tensors: Sequence[torch.Tensor]) -> tuple[_Context, tuple[torch.Tensor, ...]]:
        """Run the class's forward pass with these tensors."""
        context = _Context(self)
        filled = iter(tensors)
        args = tuple(next(filled) if arg is _SLOT else arg for arg in self.args)
        if self.cls.setup_context is _SingleLevelFunction.setup_context:
            outputs = self.cls.forward(context, *args)
        else:
            outputs = self.cls.forward(*args)
            self.cls.setup_context(context, args, outputs)
        self.returns_tuple = isinstance(outputs, (tuple, list))
        found = tuple(outputs) if self.returns_tuple else (outputs,)
        if not found or not all(isinstance(out, torch.Tensor) for out in found):
            raise self.refuse("its forward returns other things than tensors")
        return context, found

    def outputs(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What the forward pass returns for these tensors."""
        return self.forward(tensors)[1]

    def passes(
        self, tensors: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None], Sequence[int]]:
        """Outputs, gradients of the tensors for ``incoming`` ones, and places of outputs without a gradient."""
        context, outputs = self.forward(tensors)
        constant = [at for at, out in enumerate(outputs) if any(out is each for each in context.constant_outputs)]
        found = self.cls.backward(context, *incoming)
        found = found if isinstance(found, tuple) else (found,)
        return outputs, [each for each, arg in zip(found, self.args, strict=True) if arg is _SLOT], constant


_SLOT = object()


class _Context:
    """Stands for the ``ctx`` of a function's forward and backward."""

    def __init__(self, call: FunctionCall) -> None:
        self._call = call
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad = call.needs_gradient
        self.constant_outputs: tuple[torch.Tensor, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *_: Any) -> None:
        """Forward-mode differentiation is not captured."""

    def set_materialize_grads(self, _: bool) -> None:
        """Incoming gradients are always tensors here."""

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        self.constant_outputs = tensors

    def mark_dirty(self, *_: torch.Tensor) -> None:
        raise self._call.refuse("it changes its arguments in place")


OpaqueCall = FunctionCall | ScanCall


@dataclass
class FunctionCalls:
    """Calls that were recorded while a model was traced, by the name of the op that stands for each."""

    library: torch.library.Library
    calls: dict[str, OpaqueCall] = field(default_factory=dict)

    def record(self, cls: Any, args: tuple[Any, ...]) -> Any:
        """Call the opaque op of a call of ``cls``."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        places = tuple(_SLOT if isinstance(arg, torch.Tensor) else arg for arg in args)
        call = FunctionCall(cls, places, tuple(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args))
        for arg in args:
            if isinstance(arg, (torch.SymInt, torch.SymFloat)):
                raise call.refuse("an argument is a size that depends on the batch")
            if isinstance(arg, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in arg):
                raise call.refuse("an argument is a list of tensors")

        def shapes(*values: torch.Tensor) -> list[torch.Tensor]:
            with torch.no_grad():
                return [torch.empty_like(out) for out in call.outputs(values)]

        outputs = self._opaque(call, tensors, shapes)
        return tuple(outputs) if call.returns_tuple else outputs[0]

    def record_scan(self, step: Callable[..., Any], init: Any, slices: Any) -> Any:
        """Call the opaque op of a scan; in place of torch's own call of the flattened scan."""
        call = scan_call(step, init, slices)
        tensors = [*init, *slices, *call.lifted]
        outputs = self._opaque(call, tensors, lambda *values: call.stacked(values))
        return pytree.tree_unflatten(outputs, call.structure)

    def _opaque(
        self, call: OpaqueCall, tensors: Sequence[torch.Tensor], shapes: Callable[..., Any]
    ) -> list[torch.Tensor]:
        """Define and call an op that stands for a call."""
        name = f"call_{len(self.calls)}"
        self.calls[name] = call
        schema = f"{name}({', '.join(f'Tensor x{at}' for at in range(len(tensors)))}) -> Tensor[]"
        self.library.define(schema)  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{NAMESPACE}::{name}", shapes, lib=self.library)
        return list(getattr(getattr(torch.ops, NAMESPACE), name).default(*tensors))


@contextmanager
def functions_as_ops() -> Iterator[FunctionCalls]:
    """While active, torch's scans and calls of ``torch.autograd.Function`` classes outside of torch are opaque ops."""
    with torch.library._scoped_library(NAMESPACE, "FRAGMENT") as library:
        calls = FunctionCalls(library)

        def apply(cls: Any, *args: Any) -> Any:
            own = not str(cls.__module__).startswith("torch.")
            if own and any(isinstance(arg, torch.Tensor) for arg in args):
                return calls.record(cls, args)
            return super(_SingleLevelFunction, cls).apply(*args)

        # Also found by bound methods that a model keeps, such as ``round_ste = RoundSTE.apply``.
        setattr(_SingleLevelFunction, "apply", classmethod(apply))  # noqa: B010 - torch's stubs lack it
        try:
            with recorded_scans(calls.record_scan):
                yield calls
        finally:
            delattr(_SingleLevelFunction, "apply")


def trace_function(call: OpaqueCall, metas: Sequence[torch.Tensor], normalize: Callable[..., Any]) -> CustomFunction:
    """The body of a call on tensors of these shapes.

    Args:
        metas: meta tensors; sizes that are equal are taken to be equal always.
        normalize: arguments of an fx node by the op's schema, converted by a function (``Importer``).

    Raises:
        UnsupportedError: for a function whose passes cannot be traced.
    """
    constant: list[int] = []
    present: list[bool] = []
    scan = isinstance(call, ScanCall)
    metas = call.step_arguments(metas) if isinstance(call, ScanCall) else metas

    def joint(*values: torch.Tensor) -> list[torch.Tensor]:
        outputs, gradients, constant[:] = call.passes(values[: len(metas)], values[len(metas) :])
        present[:] = [each is not None for each in gradients]
        return [*outputs, *(each for each in gradients if each is not None)]

    try:
        with torch.no_grad():
            outputs = call.outputs(metas)
            incoming = [torch.empty_like(out) for out in outputs]
            if scan:  # derivatives are traced as those of a CPU: torch knows fewer of meta tensors
                metas, incoming = (
                    [torch.empty(each.shape, dtype=each.dtype) for each in one] for one in (metas, incoming)
                )
            how: dict[str, Any] = {"decomposition_table": backward_decompositions()} if scan else {"pre_dispatch": True}
            traced = make_fx(joint, tracing_mode="symbolic", **how)(*metas, *incoming)
            if any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in traced.graph.nodes):
                functional = torch.func.functionalize(traced if scan else joint)
                how.pop("pre_dispatch", None)
                traced = make_fx(functional, tracing_mode="symbolic", **how)(*metas, *incoming)
    except AutosbpError:
        raise
    except Exception as error:  # user code raises errors of many types
        raise call.refuse(f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}") from error
    traced.graph.eliminate_dead_code()
    body = _Body(call, len(metas), normalize)
    refs = body.read(traced.graph)
    gradients = iter(refs[len(outputs) :])
    document = {
        "inputs": len(metas),
        "steps": body.steps,
        "outputs": refs[: len(outputs)],
        "gradients": [next(gradients) if there else None for there in present],
        **({"constant_outputs": constant} if constant else {}),
        **({"scan": {"carries": call.carries, "slices": call.slices}} if isinstance(call, ScanCall) else {}),
    }
    return intern_function(call.label, document)


class _Body:
    """Writes a traced graph as the steps of a body."""

    def __init__(self, call: OpaqueCall, num_inputs: int, normalize: Callable[..., Any]) -> None:
        self.call, self.num_inputs, self.normalize = call, num_inputs, normalize
        self.values: dict[Any, Any] = {}
        self.steps: list[dict[str, Any]] = []

    def read(self, graph: torch.fx.Graph) -> list[Any]:
        """Read every node; returns references to the outputs."""
        placeholders = 0
        for node in graph.nodes:
            if node.op == "placeholder":
                at = placeholders - self.num_inputs
                self.values[node] = {"ref": f"x{placeholders}" if at < 0 else f"g{at}"}
                placeholders += 1
            elif node.op == "output":
                return [self.convert(each) for each in node.args[0]]
            elif node.op == "call_function":
                self.values[node] = self._step(node)
            else:
                raise self.call.refuse("it reads a tensor that is not among its arguments")
        raise AssertionError("a graph ends in its output")

    def _step(self, node: torch.fx.Node) -> dict[str, Any]:
        target: Any = node.target
        kwargs: Mapping[str, Any] = {}
        if getattr(target, "__name__", "") == "getitem":
            return {"ref": self.values[node.args[0]]["ref"], "out": node.args[1]}
        if isinstance(target, torch._ops.OpOverload) and target is not torch.ops.aten.sym_size.int:
            op = f"{target.namespace}.{target._schema.name.split('::')[1]}.{target._overloadname or 'default'}"
            if op not in ALLOWED_OPS or target._schema.is_mutable:
                raise self.call.refuse(f"it calls {op}, which a graph may not name")
            if torch.Tag.nondeterministic_seeded in target.tags:
                raise self.call.refuse(f"it draws random numbers ({op})")
            args, kwargs = self.normalize(node, self.convert)
        else:
            short = "size" if target is torch.ops.aten.sym_size.int else str(getattr(target, "__name__", target))
            if short not in INT_OPS:
                raise self.call.refuse(f"it computes sizes with {short}")
            op, args = f"int.{short}", tuple(self.convert(arg) for arg in node.args)
        name = f"v{len(self.steps)}"
        step = {"name": name, "op": op, "args": list(args)}
        self.steps.append({**step, "kwargs": dict(kwargs)} if kwargs else step)
        return {"ref": name}

    def convert(self, arg: Any) -> Any:
        """An argument of an fx node, as an argument of a body."""
        if isinstance(arg, torch.fx.Node):
            return self.values[arg]
        if isinstance(arg, (list, tuple)):
            return [self.convert(item) for item in arg]
        if isinstance(arg, torch.dtype):
            return {"dtype": str(arg).removeprefix("torch.")}
        if isinstance(arg, float):
            return tagged_number(arg)
        if arg is None or isinstance(arg, (bool, int, str)):
            return arg
        if isinstance(arg, (torch.device, torch.layout, torch.memory_format)):
            return None
        raise self.call.refuse(f"an argument of an op is a {type(arg).__name__}")
