"""Read the CSV and JSON output of rccl-tests (``-Z csv|json -x FILE``): one record per row and side.

Source: https://github.com/ROCm/rccl-tests, src/common.cu. Fields are ``numCycle, name, [nodes, ranks, ranksPerNode,
gpusPerRank,] size, type, redop, inPlace, time, algBw, busBw, wrong``, of any case and in any order. There is no summary.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from autosbp.calibration._nccl_log import NcclLog, Placement, kind_in_name, kind_of
from autosbp.calibration._nccl_rows import Row, Side, bus_factor, points_of, side_of, time_unit
from autosbp.errors import CalibrationError

_FIELDS = ("size", "inplace", "time", "algbw", "busbw")
_YES = ("1", "true")

Record = Mapping[str, str]


def is_records(text: str) -> bool:
    """Whether the first line names an ``inPlace`` column, or the text is JSON with such fields."""
    head = text.lstrip()[:2000].lower()
    if head.startswith(("[", "{")):
        return re.search(r'"in_?place"\s*:\s*[^\s{]', head) is not None and '"results"' not in head
    return re.search(r'[,;]\s*"?in_?place"?\s*[,;]', head.partition("\n")[0]) is not None


def read_nccl_records(text: str, path: Path, kind: str | None = None) -> NcclLog:
    """Parse one run; raises the errors of ``read_nccl_log``."""
    records = list(_json_records(text, path.name) if text.lstrip()[0] in "[{" else _csv_records(text, path.name))
    kinds = {found for _, record in records if (found := kind_in_name(record.get("name", ""))) is not None}
    if len(kinds) > 1:
        raise CalibrationError(f"{path.name}: records of {', '.join(sorted(kinds))}; one collective a file is expected")
    kind = kind_of(kind or next(iter(kinds), None), "", path)
    rows = [_row(where, record) for where, record in records]
    points = points_of(rows, time_unit(rows), repeats=1)
    if not any(points):
        raise CalibrationError(f"{path.name}: truncated or empty: no records of a message size above 0")
    placements = {replace(each, where="") for where, record in records if (each := _placement(where, record))}
    if len(placements) > 1:
        raise CalibrationError(f"{path.name}: records of several numbers of ranks; one is expected")
    placement = _placement(*records[0]) if placements else None
    return NcclLog(kind, *points, bus_factor(rows), 0, placement, ends=False)


def _csv_records(text: str, name: str) -> Iterator[tuple[str, Record]]:
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.strip())
    reader = csv.reader(lines[first:], delimiter=";" if lines[first].count(";") > lines[first].count(",") else ",")
    fields = _plain(next(reader))
    for cells in reader:
        where = f"{name} line {first + reader.line_num}"
        if not "".join(cells).strip():
            continue
        if len(cells) != len(fields):
            raise CalibrationError(f"{where}: truncated: {len(cells)} columns; {len(fields)} are expected")
        yield where, dict(zip(fields, (cell.strip() for cell in cells), strict=True))


def _json_records(text: str, name: str) -> Iterator[tuple[str, Record]]:
    """Records of a list, or of one object a line."""
    try:
        whole = text.lstrip().startswith("[")
        found = json.loads(text) if whole else [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{name}: truncated or not JSON ({error})") from None
    for index, record in enumerate(found):
        if not isinstance(record, dict):
            raise CalibrationError(f"{name} record {index + 1}: an object is expected")
        names = _plain([str(field) for field in record])
        yield f"{name} record {index + 1}", dict(zip(names, map(str, record.values()), strict=True))


def _plain(names: list[str]) -> list[str]:
    """Field names in lower case, without ``_``, ``#`` and blanks."""
    return [re.sub(r"[^a-z]", "", field.lower()) for field in names]


def _row(where: str, record: Record) -> Row:
    missing = [field for field in _FIELDS if field not in record]
    if missing:
        raise CalibrationError(f"{where}: the field {missing[0]} is missing")
    try:
        size, wrong = int(record["size"]), record.get("wrong", "N/A")
        side: Side | None = side_of(
            record, "N/A" if wrong in ("", "None", "-1") else wrong, where, size, counts_wrong=True
        )
        if side is not None:
            float(side.algbw or 0), float(side.busbw or 0)
    except ValueError as error:
        raise CalibrationError(f"{where}: numbers are expected in {', '.join(_FIELDS)} and wrong ({error})") from None
    in_place = record["inplace"].lower() in _YES
    return Row(where, size, None if in_place else side, side if in_place else None)


def _placement(where: str, record: Record) -> Placement | None:
    """Ranks of the run, if a record says on how many nodes; a rank may have several devices."""
    try:
        nodes, ranks, devices = (int(record[name]) for name in ("nodes", "ranks", "gpusperrank"))
    except (KeyError, ValueError):
        return None
    return Placement(where, None, ranks * devices, (ranks * devices // max(nodes, 1),) * nodes)
