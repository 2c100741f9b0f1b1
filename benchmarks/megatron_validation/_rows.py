"""The published rows: Korthikanti et al. (arXiv 2205.05198), Table 5, from ``benchmarks/data/published``."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parents[1] / "data" / "published" / "megatron_iteration_time.csv"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run.

    ``mode`` is ``full`` (full recomputation, replicated activations between blocks) or ``selective`` (with sequence
    parallelism).
    """

    model: str
    hidden: int
    ffn: int
    heads: int
    head_dim: int
    layers: int
    seq_len: int
    gpus: int
    tp: int
    pp: int
    dp: int
    interleave: int
    global_batch: int
    micro_batch: int
    mode: str
    iteration_s: float

    @property
    def sequence_parallel(self) -> bool:
        return self.mode == "selective"


def published_rows() -> list[Row]:
    """All rows, in the table's order."""
    texts = ("model", "mode")
    with TABLE.open(newline="") as file:
        return [
            Row(**{  # type: ignore[arg-type]
                key: value if key in texts else float(value) if key == "iteration_s" else int(value)
                for key, value in entry.items()
            })
            for entry in csv.DictReader(file)
        ]  # fmt: skip
