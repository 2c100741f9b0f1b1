"""Table of rows in the text output of nccl-tests and rccl-tests, of every release.

A row is ``size count type [redop] [root]``, then ``time algbw busbw #wrong`` out of place and again in place, or in place
only; newer releases may add columns of single iterations after each side and a time of day at the end. Programs may
leave a column of the header blank, so that the columns from the first time on are counted from the right. Launchers
may insert tags, even in the middle of a row, colours and other processes' messages, and break rows over lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autosbp.calibration._nccl_rows import Row, Side, side_of
from autosbp.errors import CalibrationError

HEADER = re.compile(r"(?<!\S)#?[ \t]*(?:size[ \t]+count|bytes[ \t]+N)[ \t]+type\b(.*)$", re.MULTILINE)
_TYPE = r"(?:u?int\d*|char|half|double|(?:b?float|bf|fp?)\d*(?:_?e\dm\d\w*)?)"
_HEAD = re.compile(rf"(?<!\S)(\d+)\s+(\d+)\s+{_TYPE}(?!\S)\s*([A-Za-z]\w*(?!\S))?")
_CUT_HEAD = re.compile(r"\s*\d+(?:\s+\d+(?:\s+[A-Za-z]\w*)?)?\s*")
_NOISE = (
    re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"),  # colours
    re.compile(r"\[\d+(?:,\d+)*\](?:<std\w+>)?:?|^\s*\d+:\s"),  # mpirun --tag-output, srun --label
    re.compile(r"\S*\d+:\d+ +(?:\[\d+\] +)?NCCL (?:INFO|WARN|TRACE)\b.*"),  # host:pid:thread [device]
    re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$"),  # timestamp column
)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+\*?)?|nan|inf|N/A", re.IGNORECASE)
_SIDE = ("time", "algbw", "busbw", "#wrong")
_TIMES = ("time", "cputime")
_WRONG = ("#wrong", "wrong", "error", "res")
_MAX_ROOT = 9999  # times are printed without decimals from 10000 us on


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a table from the first time on.

    Attributes:
        columns: their names, such as two times ``time algbw busbw #wrong``.
        places: of each ``time``, whether it is in place.
        has_root: whether a root may come before the first time.
        old: whether the header is of the releases that print milliseconds.
    """

    columns: tuple[str, ...]
    places: tuple[bool, ...]
    has_root: bool
    old: bool = False

    @property
    def counts_wrong(self) -> bool:
        return any("wrong" in name for name in self.columns)


@dataclass(frozen=True, slots=True)
class Table:
    rows: tuple[Row, ...]
    num_skipped: int
    layout: Layout


def cleaned(text: str) -> str:
    """The same lines without tags, colours, debug output and times of day; separators of CSV are spaces."""
    lines = text.splitlines()
    for noise in _NOISE:
        lines = [noise.sub(" ", line) for line in lines]
    return "\n".join(
        re.sub('[,;"]', " ", line) if len(re.findall("[,;]", line)) > len(_SIDE) else line for line in lines
    )


def read_layout(text: str, name: str) -> Layout:
    """Layout that the header of a cleaned text says; the one of new releases without a header.

    Raises:
        CalibrationError: the header lacks a column, or does not say whether its one time is in place.
    """
    place = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = HEADER.search(line)
        if header is None:
            place = line if re.search(r"in-?place|out-of-?place", line) else place
            continue
        names = [column for column in header[1].lower().split() if column != "timestamp"]
        first = next((at for at, column in enumerate(names) if column in _TIMES), len(names))
        columns, times = tuple(names[first:]), sum(column in _TIMES for column in names)
        if times not in (1, 2) or columns.count("algbw") != times or columns.count("busbw") != times:
            raise CalibrationError(
                f"{name} line {number}: one or two columns each of time, algbw and busbw are expected"
            )
        if times == 1 and bool(re.search(r"out-of-?place", place)) == bool(re.search(r"in-?place", place)):
            raise CalibrationError(f"{name} line {number}: whether the one column of times is in place is not said")
        places = (False, True) if times == 2 else ("out" not in place,)
        return Layout(columns, places, "root" in names[:first], "bytes" in header[0])
    return Layout(_SIDE * 2, (False, True), has_root=True)


def read_table(text: str, name: str, ended: bool) -> Table:
    """All rows of a cleaned text, with broken lines joined, and the number of pieces whose size was lost.

    Raises:
        CalibrationError: a row is cut, has too many columns or wrong results; names the line.
    """
    layout = read_layout(text, name)
    width = len(layout.columns)
    rows: list[Row] = []
    size, begun = None, list[str]()
    num_skipped, where = 0, name
    for number, line in enumerate(text.splitlines(), start=1):
        start, values = _values(line, layout, len(_SIDE) if size is None else 1)
        if start is not None and size is not None:
            raise CalibrationError(f"{where}: truncated: a row is not complete")
        where = f"{name} line {number}" if values or start is not None else where
        if start is None and size is None:
            if values and len(values) != width:
                raise CalibrationError(f"{where}: truncated: a row is not complete")
            num_skipped += bool(values)
            continue
        size, begun = size if start is None else start, begun + values
        if len(begun) > width:
            raise CalibrationError(f"{where}: {len(begun)} columns from the time on; {width} are expected")
        if len(begun) == width:
            rows.append(_row(where, size or 0, begun, layout))
            size, begun = None, []
    if size is not None or not ended and _CUT_HEAD.fullmatch(text.rstrip().rpartition("\n")[2]):
        raise CalibrationError(f"{where}: truncated: the last row is not complete")
    return Table(tuple(rows), num_skipped, layout)


def _values(line: str, layout: Layout, least: int) -> tuple[int | None, list[str]]:
    """Size, if a row begins in a line, and values from the first time on.

    A line that begins none is of the table if it has ``least`` numbers and nothing else.
    """
    head = _HEAD.search(line)
    if head is None:
        tokens = line.split()
        return None, tokens if len(tokens) >= least and all(map(_is_number, tokens)) else []
    tokens = line[head.end() :].split()
    if layout.has_root and tokens and re.fullmatch(r"-?\d+", tokens[0]) and int(tokens[0]) <= _MAX_ROOT:
        tokens = tokens[1:]
    stop = next((at for at, token in enumerate(tokens) if not _is_number(token)), len(tokens))
    return int(head[1]), tokens[:stop]


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _row(where: str, size: int, values: list[str], layout: Layout) -> Row:
    places: dict[bool, Side | None] = {}
    for in_place, columns in zip(layout.places, _sides(layout.columns, values), strict=True):
        wrong = next((columns[name] for name in _WRONG if name in columns), "N/A")
        places[in_place] = side_of(columns, wrong, where, size, layout.counts_wrong)
    return Row(where, size, places.get(False), places.get(True))


def _sides(columns: tuple[str, ...], values: list[str]) -> Iterator[dict[str, str]]:
    """Values of each side by column name, with ``cputime`` as ``time``."""
    starts = [at for at, name in enumerate(columns) if name in _TIMES]
    for start, end in zip(starts, [*starts[1:], len(columns)], strict=True):
        yield dict(zip(("time", *columns[start + 1 : end]), values[start:end], strict=True))
