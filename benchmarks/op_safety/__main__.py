"""Safety of every ATen op in client graphs: ``python -m benchmarks.op_safety [OP ...] [--calls N] [--seed N] [OPTIONS]``.

Other options: ``--json``, ``--check``. A graph is read and checked as the service does. Graphs that are not refused run
as on a rank, forward and backward, in a separate process, with tensors between inaccessible guard pages. An op is
refused by name, or its calls are refused, run, raise a Python error, or take more than ``CALL_S``. A call that kills
its process accessed memory out of bounds.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import random
import resource
import signal
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.utils import _pytree as pytree

from autosbp.api import load_graph
from autosbp.errors import GraphError
from autosbp.graph.allowed_ops import ALLOWED_OPS
from autosbp.graph.ir import DTYPE_BYTES
from autosbp.graph.to_fx import check_shapes, make_constant, to_graph_module
from benchmarks.op_safety._calls import Call, mutated_call, random_call, samples
from benchmarks.op_safety._guarded import Guard

CALL_S = 5
MEMORY_BYTES = 3 * 2**30
OUTCOMES = ("refused", "run", "raised", "slow", "no document")
_MOST_ENDINGS = 5
_FLOAT32 = {"dtype": "float32"}


def registered() -> list[str]:
    """``aten.NAME.OVERLOAD`` of every op."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        library, _, path = name.partition("::")
        base, _, overload = path.partition(".")
        if library == "aten":
            found.append(f"aten.{base}.{overload or 'default'}")
    return found


def document(name: str, op: Any, call: Call) -> dict[str, Any] | None:
    """Graph document of the call: float tensors are parameters, others constants; None if JSON cannot express it."""
    parameters: list[dict[str, Any]] = [{"name": "w", "shape": [], "dtype": "float32"}]
    constants: list[dict[str, Any]] = []

    def said(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [said(each) for each in value]
        if isinstance(value, torch.dtype):
            return {"dtype": _name(value)}
        if not isinstance(value, torch.Tensor):
            return value
        if value.dtype.is_floating_point:
            parameters.append({"name": f"p{len(parameters)}", "shape": list(value.shape), "dtype": _name(value.dtype)})
            return {"ref": parameters[-1]["name"]}
        made = make_constant(f"c{len(constants)}", value)
        constants.append({"name": made.name, "shape": list(value.shape), "dtype": made.meta.dtype, "data": made.data})
        return {"ref": made.name}

    placed, named = _as_captured(op, call)
    args, kwargs = [said(arg) for arg in placed], {word: said(arg) for word, arg in named.items()}
    outputs = (_outputs(op, call) if name in ALLOWED_OPS else None) or [{"shape": [2, 2], **_FLOAT32}]
    graph = {
        "schema": "autosbp.graph/1", "name": "op", "parameters": parameters, "inputs": [], "constants": constants,
        "nodes": [
            {"name": "op", "op": name, "args": args, "kwargs": kwargs, "outputs": outputs},
            {"name": "cast", "op": "aten.to.dtype", "args": [{"ref": "op"}, _FLOAT32],
             "outputs": [{"shape": outputs[0]["shape"], **_FLOAT32}]},
            {"name": "sum", "op": "aten.sum.default", "args": [{"ref": "cast"}], "outputs": [{"shape": [], **_FLOAT32}]},
            {"name": "loss", "op": "aten.add.Tensor", "args": [{"ref": "sum"}, {"ref": "w"}],
             "outputs": [{"shape": [], **_FLOAT32}]},
        ],
        "loss": {"ref": "loss"},
    }  # fmt: skip
    try:
        return dict(json.loads(json.dumps(graph, allow_nan=False)))
    except (TypeError, ValueError):
        return None


def _as_captured(op: Any, call: Call) -> Call:
    """Pass arguments by position where possible, as capture does."""
    args, kwargs = list(call[0]), dict(call[1])
    for at, argument in enumerate(op._schema.arguments):
        if argument.kwarg_only or not kwargs.keys() & {
            each.name for each in op._schema.arguments[at:] if not each.kwarg_only
        }:
            break
        if at >= len(args):
            args.append(kwargs.pop(argument.name, argument.default_value))
    return args, kwargs


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _outputs(op: Any, call: Call) -> list[dict[str, Any]] | None:
    """Outputs of the op according to its meta kernel; None if it reports none that a document can express."""
    try:
        with enable_python_dispatcher(), torch.no_grad():
            result = op(*_meta(call[0]), **_meta(call[1]))
        found = [
            {"shape": list(one.shape), "dtype": _name(one.dtype)}
            for one in (result if isinstance(result, (list, tuple)) else [result])
        ]
        return found if found and all(each["dtype"] in DTYPE_BYTES for each in found) else None
    except Exception:  # each op fails in its own way
        return None


def _meta(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, value)


def run_call(name: str, op: Any, call: Call, draw: random.Random) -> str:
    """Run one call and return one of ``OUTCOMES``, unless the process dies."""
    posted = document(name, op, call)
    if posted is None:
        return "no document"
    try:
        graph = load_graph(posted)
        check_shapes(graph)
    except GraphError:
        return "refused"
    guard, at_end = Guard(), draw.random() < 0.5
    try:
        program = to_graph_module(graph)
        for word, buffer in program.named_buffers():
            setattr(program, word, guard.tensor(buffer, at_end))
        leaves = pytree.tree_leaves([call[0], call[1]])
        values = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point]
        given = [torch.ones((), requires_grad=True)]
        given += [guard.tensor(value.detach(), at_end).requires_grad_() for value in values]
        program(*given).backward()
        return "run"
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, ArithmeticError, MemoryError):
        return "raised"
    finally:
        program = given = values = None  # type: ignore[assignment]
        guard.close()


def run_calls(name: str, calls: Sequence[Call], count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Counts of calls by outcome, and how the processes died that made the others."""
    counts: Counter[str] = Counter()
    endings: list[str] = []
    at = 0
    while at < count and len(endings) < _MOST_ENDINGS:
        shared = mmap.mmap(-1, 8 * (1 + len(OUTCOMES)))
        pid = os.fork()
        if pid == 0:
            try:
                _child(name, calls, range(at, count), seed, shared)
                os._exit(0)
            finally:  # an error of this script also counts as an abnormal end
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        done, *numbers = (int.from_bytes(shared[8 * k : 8 * k + 8], "little") for k in range(1 + len(OUTCOMES)))
        counts += Counter(dict(zip(OUTCOMES, numbers, strict=True)))
        if code == -signal.SIGALRM:
            counts["slow"] += 1
        elif code:
            endings.append(f"call {done} of seed {seed}: {signal.Signals(-code).name if code < 0 else code}")
        at = done + 1 if code else count
    return counts, endings


def _child(name: str, calls: Sequence[Call], numbers: range, seed: int, shared: mmap.mmap) -> None:
    faulthandler.disable()
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    op = _op(name)
    counts: Counter[str] = Counter()
    for number in numbers:
        shared[:8] = number.to_bytes(8, "little")
        draw = random.Random(f"{seed} {name} {number}")
        torch.manual_seed(zlib.crc32(f"{seed} {name} {number}".encode()))
        signal.setitimer(signal.ITIMER_REAL, CALL_S)
        call = mutated_call(calls, draw) if calls and draw.random() < 0.7 else random_call(op, draw)
        counts[run_call(name, op, call, draw)] += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        for at, outcome in enumerate(OUTCOMES, 1):
            shared[8 * at : 8 * at + 8] = counts[outcome].to_bytes(8, "little")


def _op(name: str) -> Any:
    _, base, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, base), overload)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.op_safety", description=__doc__.partition("\n")[0])
    parser.add_argument("ops", nargs="*", metavar="OP", help="names such as aten.add.Tensor; all that are registered")
    parser.add_argument("--calls", type=int, default=400, help="of an op that graphs may name; of others a tenth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="end in one line of JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 if a process ended")
    asked = parser.parse_args()
    known = samples()
    rows: dict[str, Mapping[str, int]] = {}
    ended: dict[str, list[str]] = {}
    for name in asked.ops or registered():
        allowed = name in ALLOWED_OPS
        counts, endings = run_calls(
            name, known.get(name, ()), asked.calls if allowed else max(1, asked.calls // 10), asked.seed
        )
        rows[name] = {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}
        if endings:
            ended[name] = endings
        print(f"{name:50} {'' if allowed else 'by name '}{rows[name]} {' '.join(endings)}", file=sys.stderr, flush=True)
    total = sum((Counter(row) for row in rows.values()), Counter())
    run = [name for name, row in rows.items() if row.get("run")]
    summary = {
        "ops": len(rows), "allowed": sum(name in ALLOWED_OPS for name in rows), "ops_run": len(run),
        "refused_by_name_but_run": [name for name in run if name not in ALLOWED_OPS],
        "never_run": [name for name in rows if name in ALLOWED_OPS and not rows[name].get("run")],
        "calls": {outcome: total[outcome] for outcome in OUTCOMES}, "ended": ended,
    }  # fmt: skip
    print(json.dumps({"benchmark": "op_safety", "torch": torch.__version__, **summary}) if asked.json else summary)
    return int(asked.check and bool(ended or summary["refused_by_name_but_run"]))


if __name__ == "__main__":
    sys.exit(main())
