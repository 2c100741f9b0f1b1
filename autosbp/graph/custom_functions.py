"""Ops with a backward of their own: a model's ``torch.autograd.Function`` as data.

A function is one body of ops of torch: the forward pass and the gradients that its ``backward`` computes from the
incoming ones. Values are called ``x0, x1, ...`` (tensor arguments), ``g0, ...`` (incoming gradients, one for each output)
and by their step. Sizes are computed from those of the arguments (ops of ``int``), so that a function runs on parts of
its tensors, too. Its op is ``function.CLASS.hHASH``, with the hash of the body: equal names mean equal bodies. Nothing
here needs torch (``autosbp.graph.function_ops`` runs a body).

A body with ``scan`` is one step of torch's ``scan``: its first arguments are the carried states, then come slices of
tensors along their dim 0, then tensors that every step reads whole; its outputs are the next states, then slices of
results (``autosbp.graph.scan_ops`` runs all steps). A ``torch.autograd.Function`` and a scan are the same kind of op for
everything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

from autosbp.errors import GraphError
from autosbp.graph.allowed_ops import ALLOWED_OPS
from autosbp.utils.json_io import HASH_DIGITS, NON_FINITE, Fields, canonical, digest

LIBRARY = "function"
INT_OPS = frozenset(("size", "add", "sub", "mul", "floordiv", "mod", "neg", "truediv", "sym_max", "sym_min"))
"""Ops on sizes; ``size`` takes a tensor and a dim."""
MAX_FUNCTIONS = 1024
MAX_STEPS = 4096
MAX_DEPTH = 8
_REFUSED = frozenset(("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"))
"""Ops of which only a call with known shapes can be checked."""
_VIEWS = tuple(
    f"aten.{name}."
    for name in ("detach", "expand", "permute", "select", "slice", "squeeze", "t", "transpose", "unsqueeze", "view")
)
_NAME = re.compile(r"[A-Za-z_]\w{0,127}")
_known: WeakValueDictionary[str, CustomFunction] = WeakValueDictionary()


@dataclass(frozen=True)
class CustomFunction:
    """One function; ``text`` is its canonical JSON: ``inputs``, ``steps``, ``outputs``, ``gradients``.

    ``gradients`` has an entry for each argument, null where there is none. ``constant_outputs`` are those that the class
    marked as not differentiable. ``scan`` has the numbers of ``carries`` and of ``slices`` among the arguments.
    """

    label: str
    text: str

    @cached_property
    def name(self) -> str:
        """Name of the op."""
        return f"{LIBRARY}.{self.label}.h{digest(self.document, HASH_DIGITS)}"

    @cached_property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.text))

    @cached_property
    def scan(self) -> ScanBody | None:
        """The steps of a scan; None for a function that runs once."""
        found = self.document.get("scan")
        return None if found is None else ScanBody(self.document, found["carries"], found["slices"])


@dataclass(frozen=True)
class ScanBody:
    """One step of a scan: its document, and how many of its arguments are carried states and slices."""

    document: Mapping[str, Any]
    carries: int
    slices: int

    @cached_property
    def kernels(self) -> tuple[int, int]:
        """Ops of a step that move data, forward and backward; backward computes the values of the step anew."""
        forward = reachable(self.document, self.document["outputs"])
        backward = reachable(self.document, [each for each in self.document["gradients"] if each is not None])
        moving = [step["name"] for step in self.document["steps"] if not step["op"].startswith(("int.", *_VIEWS))]
        return sum(name in forward for name in moving), sum(name in backward for name in moving)

    def saved(self, has_gradient: Collection[int]) -> tuple[int, ...]:
        """Arguments that backward reads, if these have a gradient; carried states always do."""
        wanted = [ref for at, ref in enumerate(self.document["gradients"]) if at < self.carries or at in has_gradient]
        read = reachable(self.document, [ref for ref in wanted if ref is not None])
        return tuple(at for at in range(self.document["inputs"]) if f"x{at}" in read)


def intern_function(label: str, document: Mapping[str, Any]) -> CustomFunction:
    """The function with this body, one object for equal ones, which ``known_function`` finds while it is in use."""
    made = CustomFunction(label, canonical(document).decode())
    return _known.setdefault(made.name, made)


def cast_function(function: CustomFunction, old: str, new: str) -> CustomFunction:
    """The function with casts to dtype ``new`` where it casts to ``old``."""

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: new if key == "dtype" and item == old else changed(item) for key, item in value.items()}
        return [changed(item) for item in value] if isinstance(value, list) else value

    return intern_function(function.label, changed(function.document))


def known_function(name: str) -> CustomFunction | None:
    """The function of an op's name, if a graph of this process holds it."""
    return _known.get(name)


def scan_of(op: str) -> ScanBody | None:
    """The step of an op that is a scan; None for all other ops."""
    function = _known.get(op) if op.startswith(f"{LIBRARY}.") else None
    return None if function is None else function.scan


def read_functions(data: Mapping[Any, Any], dtypes: Collection[str]) -> dict[str, CustomFunction]:
    """Read a graph document's ``functions``; raise ``GraphError`` or ``InputError`` at the first field that breaks a rule."""
    if len(data) > MAX_FUNCTIONS:
        raise GraphError("functions", len(data), f"at most {MAX_FUNCTIONS} functions are accepted")
    found = {}
    for name, entry in data.items():
        parts = str(name).split(".")
        if len(parts) != 3 or parts[0] != LIBRARY or not _NAME.fullmatch(parts[1]):
            raise GraphError("functions", name, f"expected names such as {LIBRARY}.CLASS.hHASH")
        function = intern_function(parts[1], _Body(entry, f"functions.{name}", dtypes).read())
        if function.name != name:
            raise GraphError("functions", name, f"expected {function.name}, with the hash of the body")
        found[function.name] = function
    return found


class _Body:
    """Reader of one body; ``values`` holds the names that a reference may have."""

    def __init__(self, entry: object, path: str, dtypes: Collection[str]) -> None:
        self.path, self.dtypes = path, dtypes
        self.fields = Fields(entry, path, ("inputs", "steps", "outputs", "gradients", "constant_outputs", "scan"))
        self.values: set[str] = set()

    def read(self) -> dict[str, Any]:
        fields = self.fields
        outputs, steps = list(fields.sequence("outputs")), list(fields.sequence("steps"))
        number = fields.integer("inputs", low=1, high=256)
        for limit, items, name in ((256, outputs, "outputs"), (MAX_STEPS, steps, "steps")):
            if len(items) > limit or (name == "outputs" and not items):
                raise GraphError(fields.at(name), len(items), f"1 to {limit} are accepted")
        self.values = {f"x{at}" for at in range(number)}
        incoming = {f"g{at}" for at in range(len(outputs))}
        self.values |= incoming
        read = [self._step(step, f"{self.path}.steps[{at}]") for at, step in enumerate(steps)]
        gradients = list(fields.sequence("gradients"))
        if len(gradients) != number:
            raise GraphError(fields.at("gradients"), len(gradients), f"expected one for each of {number} inputs")
        for name, refs in (("outputs", outputs), ("gradients", gradients)):
            for at, ref in enumerate(refs):
                if ref is not None or name == "outputs":
                    self._arg(ref, f"{fields.at(name)}[{at}]", reference=True)
        constant = list(fields.sequence("constant_outputs", ()))
        if any(type(at) is not int or not 0 <= at < len(outputs) for at in constant):
            raise GraphError(fields.at("constant_outputs"), constant, f"expected places of {len(outputs)} outputs")
        body = {"inputs": number, "steps": read, "outputs": outputs, "gradients": gradients}
        if constant:
            body["constant_outputs"] = constant
        if fields.has("scan"):
            body["scan"] = self._scan(number, len(outputs))
        if reachable(body, outputs) & incoming:
            raise GraphError(fields.at("outputs"), outputs, "expected outputs that no incoming gradient reaches")
        return body

    def _scan(self, inputs: int, outputs: int) -> dict[str, int]:
        path = self.fields.at("scan")
        fields = Fields(self.fields.mapping("scan"), path, ("carries", "slices"))
        found = {name: fields.integer(name, low=1, high=256) for name in ("carries", "slices")}
        if found["carries"] > outputs or sum(found.values()) > inputs:
            raise GraphError(path, found, f"expected at most {outputs} carries, and {inputs} carries and slices")
        return found

    def _step(self, entry: object, path: str) -> dict[str, Any]:
        fields = Fields(entry, path, ("name", "op", "args", "kwargs"))
        name, op = fields.text("name"), fields.text("op")
        if not _NAME.fullmatch(name) or name in self.values or re.fullmatch(r"[xg]\d+", name):
            raise GraphError(fields.at("name"), name, "expected an unused name")
        library, _, short = op.partition(".")
        if op in _REFUSED or not (op in ALLOWED_OPS or (library == "int" and short in INT_OPS)):
            raise GraphError(fields.at("op"), op, "expected an op of autosbp.graph.allowed_ops or of int")
        args = list(fields.sequence("args"))
        kwargs = dict(fields.mapping("kwargs", {}))
        self._arg(args, f"{path}.args")
        self._arg(list(kwargs.values()), f"{path}.kwargs")
        if "trunc" in (*args, *kwargs.values()):
            raise GraphError(f"{path}.args", "trunc", 'expected the rounding mode "floor"')
        self.values.add(name)
        return {"name": name, "op": op, "args": args, **({"kwargs": kwargs} if kwargs else {})}

    def _arg(self, arg: Any, path: str, depth: int = 0, *, reference: bool = False) -> None:
        if depth > MAX_DEPTH:
            raise GraphError(path, "...", f"at most {MAX_DEPTH} nested lists are accepted")
        if isinstance(arg, list) and not reference:
            for at, item in enumerate(arg):
                self._arg(item, f"{path}[{at}]", depth + 1)
        elif isinstance(arg, dict) or reference:
            self._special(arg, path, reference)
        elif isinstance(arg, int) and not -(2**63) <= arg < 2**63:
            raise GraphError(path, arg, "expected an integer of 64 bits")

    def _special(self, arg: Any, path: str, reference: bool) -> None:
        keys = set(arg) if isinstance(arg, dict) else set()
        if "ref" in keys and keys <= {"ref", "out"}:
            known = isinstance(arg["ref"], str) and arg["ref"] in self.values
            if not known or type(arg.get("out", 0)) is not int or not 0 <= arg.get("out", 0) < 64:
                raise GraphError(path, arg, "expected an earlier value of the function")
        elif reference or not (
            (keys == {"dtype"} and arg["dtype"] in self.dtypes) or (keys == {"float"} and arg["float"] in NON_FINITE)
        ):
            raise GraphError(path, arg, 'expected {"ref": name}, {"dtype": name} or {"float": "Infinity"}')


def references(arg: Any) -> Iterator[str]:
    """Names of the values in an argument of a body."""
    if isinstance(arg, dict):
        if "ref" in arg:
            yield arg["ref"]
    elif isinstance(arg, list):
        for item in arg:
            yield from references(item)


def reachable(body: Mapping[str, Any], wanted: list[Any]) -> set[str]:
    """Names of the values that ``wanted`` are computed from, and their own."""
    found = set(references(wanted))
    for step in reversed(body["steps"]):
        if step["name"] in found:
            found.update(references([step["args"], list(step.get("kwargs", {}).values())]))
    return found
