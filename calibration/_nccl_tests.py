"""Reads the output of nccl-tests (``all_reduce_perf`` and the like): https://github.com/NVIDIA/nccl-tests. JSON is
``_nccl_json``'s; this is the text.

A row is ``size count type redop [root]``, then ``time algbw busbw #wrong`` out of place and again in place; older
releases have no ``root`` and an ``error`` column, newer ones may have columns of single iterations behind each and a time of
day at the end. ``size`` is the full message as the cost model counts it. Launchers may tag lines, also in the middle of a
row, and break rows over lines; a run may end early.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import CollectiveFit, Point
from autosbp.costmodel.network import beta_factor
from autosbp.errors import CalibrationError, InputError
from calibration._fit import fit_collective
from calibration._nccl_json import read_nccl_json
from calibration._nccl_log import MIN_ALGBW, NcclLog, kind_of

_TAG = re.compile(r"\[\d+(?:,\d+)*\](?:<std\w+>:?)?|^\s*\d+:\s")  # mpirun --tag-output, srun --label
_TIME_OF_DAY = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_GROUP = re.compile(r"#\s+Rank\s+\d+\s+Group\s+(\d+)\s")
_HEADER = r"#\s+size\s+count\s+type\b"
_TIMES = ("time", "cputime")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf|N/A", re.IGNORECASE)
_SIDE = 4  # time algbw busbw #wrong
_RATIO_TOLERANCE = 0.02
MAX_LOG_BYTES = 16 * 2**20  # a run prints kilobytes, with every rank's debug output some megabytes


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    size: int
    values: tuple[str, ...]  # two sides of four columns


def read_nccl_log(path: Path, kind: str | None = None) -> NcclLog:
    """Parse one run. ``kind`` is needed where neither the text nor the file's name tells the collective.

    Raises ``CalibrationError`` for a truncated run, wrong results or no rows of a size above 0, and ``InputError`` for
    a file that cannot be read and an unknown kind.
    """
    text = _read(path)
    if text.lstrip().startswith("{"):
        return read_nccl_json(text, path, kind)
    kind = kind_of(kind, text, path)
    num_runs = max(len(re.findall(pattern, text)) for pattern in (_HEADER, "# nThread"))
    if num_runs > 1:
        raise CalibrationError(f"{path.name}: {num_runs} runs in one file; one is expected, so cut it between them")
    counts_wrong = "error" not in (_columns(text) or ())
    rows, num_skipped = _rows(text, path.name)
    if re.search(r"Out of bounds values\s*:\s*\d+\s+FAILED", text):
        raise CalibrationError(f"{path.name}: nccl-tests reports values out of bounds")
    ended = "# Avg bus bandwidth" in text or "# Out of bounds values" in text
    if re.search(r"# nThread|# Collective test starting", text) and not ended:
        raise CalibrationError(f"{path.name}: truncated: the run has a beginning but no summary at its end")
    iterations = re.search(r"(?<!warmup )iters: (\d+)", text)
    repeats = max(int(iterations[1]), 1) if iterations else 1
    sides: tuple[list[Point], list[Point]] = ([], [])
    for row in rows:
        for side, values in zip(sides, (row.values[:_SIDE], row.values[_SIDE:]), strict=True):
            if counts_wrong and values[3] not in ("0", "N/A"):
                raise CalibrationError(f"{path.name} line {row.line}: {values[3]} wrong values at {row.size} bytes")
            if row.size > 0 and values[0] != "N/A":
                side.append(Point(row.size, _microseconds(values[0], path.name, row) * 1e-6, 0.0, repeats))
    if not any(sides):
        raise CalibrationError(f"{path.name}: truncated or empty: no rows of a message size above 0")
    groups = [int(number) for number in _GROUP.findall(text)]
    num_groups = max(groups) + 1 if groups else None
    return NcclLog(kind, tuple(sides[0]), tuple(sides[1]), _bus_factor(rows, path.name), num_skipped, num_groups, ended)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LOG_BYTES + 1)
        text = data.decode()
    except (OSError, ValueError) as error:
        raise InputError("path", str(path), f"a readable nccl-tests log is expected ({error})") from None
    if len(data) > MAX_LOG_BYTES:
        raise InputError("path", str(path), f"a log of at most {MAX_LOG_BYTES} bytes is expected")
    if not text.strip():
        raise CalibrationError(f"{path.name}: truncated or empty: no rows are in it")
    return text


def import_nccl_log(
    path: Path,
    cluster: Cluster,
    group_shape: tuple[int, ...],
    *,
    kind: str | None = None,
    in_place: bool = False,
    method: str = "relative",
    num_groups: int | None = None,
) -> CollectiveFit:
    """The fit of one nccl-tests run over groups of ``group_shape`` of ``cluster``, to put in a ``Calibration``.

    ``num_groups`` ran at once: by default as many as the log tells, else one. Where more would share links, the fit is of
    so many alone, and all at once are predicted from it. Raises ``InputError`` when the shape is not one of the cluster's
    or contradicts the log's bus bandwidth, and ``CalibrationError`` as ``read_nccl_log`` and ``fit_collective`` do.
    """
    limits = tuple(level.count for level in cluster.levels)
    fits_in = len(group_shape) == len(limits) and all(
        1 <= count <= limit for count, limit in zip(group_shape, limits, strict=True)
    )
    if not fits_in or prod(group_shape) < 2:
        raise InputError("group_shape", group_shape, f"counts within {limits}, of two ranks or more, are expected")
    log = read_nccl_log(path, kind)
    expected = beta_factor(log.kind, prod(group_shape))
    if log.bus_factor is not None and abs(log.bus_factor / expected - 1) > _RATIO_TOLERANCE:
        raise InputError(
            "group_shape",
            group_shape,
            f"the log's busbw / algbw is {log.bus_factor:.3f}, but {expected:.3f} for {prod(group_shape)} ranks",
        )
    points = log.in_place if in_place else log.out_of_place
    if not points:
        raise CalibrationError(f"{path.name}: no {'in-place' if in_place else 'out-of-place'} times")
    fit = fit_collective(log.kind, group_shape, points, method)
    at_once = num_groups or log.num_groups or 1
    return replace(fit, num_groups=at_once if at_once < _sharing(cluster, group_shape) else None)


def _sharing(cluster: Cluster, group_shape: tuple[int, ...]) -> int:
    """How many groups of a shape go over the same link of a node, or of whatever is outermost among what they cross."""
    inside = next(at for at, count in enumerate(group_shape) if count > 1) + 1
    return prod(level.count for level in cluster.levels[inside:]) // prod(group_shape[inside:])


def _columns(text: str) -> list[str] | None:
    """The names of the columns, where a header line gives them."""
    match = re.search(r"^.*#\s+(size\s+count\s+type\b.*)$", text, re.MULTILINE)
    return [name for name in _TAG.sub(" ", match[1]).split() if name != "timestamp"] if match else None


def _rows(text: str, name: str) -> tuple[list[_Row], int]:
    """All rows, joined where they were broken over lines, and the number of pieces without a message size."""
    columns = _columns(text)
    width = len(columns) if columns else None
    starts_of = [at for at, name in enumerate(columns or ()) if name in _TIMES]
    rows: list[_Row] = []
    begun: list[str] = []
    num_skipped = 0
    for number, tokens in _data_lines(text):
        starts = not all(map(_is_number, tokens))
        if starts and begun or not starts and not begun and len(tokens) != 2 * _SIDE:
            raise CalibrationError(f"{name} line {number}: truncated: a row is not complete")
        if not starts and not begun:
            num_skipped += 1
            continue
        begun += tokens
        full = width or _head_width(begun) + 2 * _SIDE
        if len(begun) > full:
            raise CalibrationError(f"{name} line {number}: a row of {len(begun)} columns; {full} are expected")
        if len(begun) == full:
            sides = [begun[at : at + _SIDE] for at in starts_of] if len(starts_of) == 2 else [begun[-2 * _SIDE :]]
            rows.append(_Row(number, int(begun[0]), tuple(value for side in sides for value in side)))
            begun = []
    if begun:
        raise CalibrationError(f"{name}: truncated: the last row is not complete")
    return rows, num_skipped


def _data_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Lines without tags that are a row's beginning (``size count type``) or only figures."""
    for number, line in enumerate(text.splitlines(), start=1):
        tokens = _TIME_OF_DAY.sub("", _TAG.sub(" ", line)).split()
        begins = len(tokens) > 2 and tokens[0].isdigit() and tokens[1].isdigit() and all(map(_is_number, tokens[5:]))
        if tokens and (begins or all(map(_is_number, tokens))):
            yield number, tokens


def _head_width(tokens: list[str]) -> int:
    """Columns before the first time, of a log without a header; the root is ``-1``, or 0 of a broadcast, as no time is."""
    return 3 + (len(tokens) > 3 and tokens[3].isalpha()) + (len(tokens) > 4 and tokens[4] in ("-1", "0"))


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _microseconds(text: str, name: str, row: _Row) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise CalibrationError(f"{name} line {row.line}: a time of {text} us at {row.size} bytes is not positive")
    return value


def _bus_factor(rows: list[_Row], name: str) -> float | None:
    """busbw / algbw, of the fastest row; ``CalibrationError`` where another has another, as of other ranks or another
    collective."""
    told = [row for row in rows if "N/A" not in row.values[1:3] and float(row.values[1]) >= MIN_ALGBW]
    factors = [float(row.values[2]) / float(row.values[1]) for row in told]
    if not told:
        return None
    best = factors[max(range(len(told)), key=lambda at: float(told[at].values[1]))]
    for row, factor in zip(told, factors, strict=True):
        if abs(factor - best) > _RATIO_TOLERANCE * best:
            limit = f"busbw / algbw is {factor:.3f}, of other rows {best:.3f}: one collective of one number of ranks"
            raise CalibrationError(f"{name} line {row.line}: {limit} is expected")
    return best
