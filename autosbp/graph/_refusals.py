"""Why a model cannot be captured, in the user's terms: what torch said, where in their code, and what to do."""

from __future__ import annotations

import re
import traceback

_HINTS = (
    (
        r"data-dependent|unbacked|GuardOnDataDependent|Could not guard|item\(\)|nonzero",
        "a shape or a branch depends on values; use a dense form (masks, top-k of fixed k, one-hot)",
    ),
    (
        r"Constraints violated|specialized|not all values|Not all values",
        "dim 0 of every input is the batch and must stay free; do not mix it with other sizes or test it",
    ),
    (r"cond|while_loop|control flow", "write both branches and choose with torch.where"),
)
_DEFAULT = "run torch.export.export on the module to see all of its report"
MAX_REASON = 300


def explain_failure(name: str, error: BaseException) -> str:
    """One paragraph: the first line of torch's message, the deepest line of the model's code, and a hint."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    detail = " ".join(line for line in lines if line.startswith("- "))[:MAX_REASON]
    reason = f"{lines[0][:MAX_REASON]} {detail}".strip() if lines else type(error).__name__
    hint = next((advice for pattern, advice in _HINTS if re.search(pattern, text)), _DEFAULT)
    return f"torch.export cannot capture {name}: {type(error).__name__}: {reason}{_where(error)}; {hint}"


def _where(error: BaseException) -> str:
    """The deepest frame outside of torch, contextlib and this package, over the error and what caused it."""
    place = ""
    seen: BaseException | None = error
    while seen is not None:
        for frame in traceback.extract_tb(seen.__traceback__):
            outside = not re.search(r"[/\\]torch[/\\]|[/\\]autosbp[/\\]graph[/\\]|contextlib|copyreg", frame.filename)
            if outside and not frame.filename.startswith("<"):
                place = f" at {frame.filename}, line {frame.lineno} ({(frame.line or '').strip()[:120]})"
        seen = seen.__cause__ or seen.__context__
    return place
