"""Explain a failed capture to the user: torch's message, the line of their code, and a fix."""

from __future__ import annotations

import re
import traceback

_HINTS = (
    (
        r"data-dependent|DynamicOutputShape|unbacked|GuardOnDataDependent|Could not guard|item\(\)|nonzero",
        "a shape or branch depends on tensor values; use a dense form (masks, top-k with fixed k, one-hot)",
    ),
    (
        r"Constraints violated|specialized|not all values|Not all values",
        "dim 0 of every input is the batch and must stay symbolic; do not combine it with other sizes or branch on it",
    ),
    (r"cond|while_loop|control flow", "compute both branches and select with torch.where"),
)
_DEFAULT = "run torch.export.export on the module for the full report"
MAX_REASON = 300


def explain_failure(name: str, error: BaseException) -> str:
    """One paragraph: the first line of torch's message, the deepest line of the model's code, and a hint."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    detail = " ".join(line for line in lines if line.startswith("- "))[:MAX_REASON]
    reason = f"{lines[0][:MAX_REASON]} {detail}".strip() if lines else type(error).__name__
    told = f"{type(error).__name__}: {text}"
    hint = next((advice for pattern, advice in _HINTS if re.search(pattern, told)), _DEFAULT)
    return f"torch.export cannot capture {name}: {type(error).__name__}: {reason}{_where(error)}; {hint}"


def depends_on_values(error: BaseException) -> bool:
    """Whether tracing failed because a branch or a size depends on values."""
    return re.search(_HINTS[0][0], str(error)) is not None


def _where(error: BaseException) -> str:
    """The deepest frame outside torch, contextlib and this package, in the error and its causes."""
    place = ""
    seen: BaseException | None = error
    while seen is not None:
        for frame in traceback.extract_tb(seen.__traceback__):
            outside = not re.search(r"[/\\]torch[/\\]|[/\\]autosbp[/\\]graph[/\\]|contextlib|copyreg", frame.filename)
            if outside and not frame.filename.startswith("<"):
                place = f" at {frame.filename}, line {frame.lineno} ({(frame.line or '').strip()[:120]})"
        seen = seen.__cause__ or seen.__context__
    return place
