"""What would have no effect is refused by name, with its value, before anything is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_errors import PLAN, filled

NOWHERE = ("--server", "http://127.0.0.1:9")
EXPLAIN = ("explain", "{plan}")
WHOLE = (*EXPLAIN, "--graph", "{graph}")
TRIAL = ("trial", "{plan}", "--graph", "{graph}")
MEASURE = ("calibrate", "--cluster", "local:2")
LOGS = ("calibrate", "--cluster", "dgx-h100:2", "--nccl-log", "2x8=log.txt")
NCCL = ("calibrate", "--cluster", "local:2", "--nccl-tests", "auto")
CASES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    ((*PLAN, "--stages", "1", "--schedule", "message_driven"), "schedules: ('message_driven',)", "stages = 1"),
    ((*PLAN, "--pin", "linear_1=S0", "--schedule", "gpipe"), "schedules: ('gpipe',)", "one stage unless"),
    ((*PLAN, "--pin", "linear_1=S0", "--storage", "use"), "storage: 'use'", "not allowed with pins"),
    ((*PLAN, "--searcher", "random", "--gap-tolerance", "0.1"), "gap_tolerance: 0.1", "random proves no gap"),
    (
        ("plan", "{graph}", "--cluster", "dgx-h100:1", "--offload", "--optimizer", "sgd", "--precision", "fp32"),
        "offload: True",
        "has no optimizer state",
    ),
    (("plan", "mod-1", "--cluster", "clu-1", "--seq-len", "8", *NOWHERE), "seq_len: 8", "a stored model has its own"),
    ((*PLAN, "--start", "{plan}", "--storage", "use"), "storage: 'use'", "not allowed with start"),
    ((*PLAN, "--start", "plan-1", "--recompute", "2", *NOWHERE), "recompute: 2", "not allowed with start"),
    ((*EXPLAIN, "--rank", "1"), "rank: 1", "requires --program"),
    ((*WHOLE, "--most", "3"), "most: 3", "requires --why OP"),
    ((*WHOLE, "--factor", "3"), "factor: 3.0", "requires --what-if"),
    ((*WHOLE, "--why", "linear_1", "--factor", "3"), "factor: 3.0", "requires --what-if"),
    ((*WHOLE, "--program", "--calibration", "c.json"), "calibration: 'c.json'", "--program prints no costs"),
    ((*EXPLAIN, "--calibration", "c.json"), "calibration: 'c.json'", "requires --graph or --model"),
    ((*EXPLAIN, "--seq-len", "8"), "seq_len: 8", "requires --model hf:CONFIG"),
    (("explain", "{calib}", "--why", "linear_1"), "why: 'linear_1'", "takes only --report"),
    (("explain", "{calib}", "--rank", "1"), "rank: 1", "takes only --report"),
    (("explain", "{calib}", "--graph", "{graph}"), "graph: ", "takes only --report"),
    (
        ("explain", "plan-1", "--model", "zoo:mlp", *NOWHERE),
        "model: 'zoo:mlp'",
        "the service has the graph of plan-1",
    ),
    (("explain", "plan-1", "--image-size", "8", *NOWHERE), "image_size: 8", "requires --model hf:CONFIG"),
    ((*WHOLE, "--model", "zoo:mlp", *NOWHERE), "model: 'zoo:mlp'", "not both"),
    (("diff", "{plan}", "{plan}", *NOWHERE), "server: 'http://127.0.0.1:9'", "requires a strategy id"),
    (("estimate", "{graph}", "--calibration", "c.json"), "calibration: 'c.json'", "requires --cluster"),
    (
        ("export", "{plan}", "--to", "dtensor", "--calibration", "c.json"),
        "calibration: 'c.json'",
        "not used with --to dtensor",
    ),
    (("export", "{plan}", "--to", "dtensor", "--seq-len", "8"), "seq_len: 8", "requires --model hf:CONFIG"),
    ((*TRIAL, "--launcher", "emulated", *NOWHERE), "launcher: 'emulated'", "omit this or --server"),
    ((*TRIAL, "--interface", "eth0", *NOWHERE), "interface: 'eth0'", "omit this or --server"),
    ((*TRIAL, "--workdir", "x", *NOWHERE), "workdir: 'x'", "omit this or --server"),
    ((*TRIAL, "--import", "ops", *NOWHERE), "imports: ['ops']", "omit this or --server"),
    ((*TRIAL, "--no-wait", "--timeout", "9", *NOWHERE), "timeout: 9.0", "not used with --no-wait"),
    ((*MEASURE, "--global-batch", "8"), "global_batch: 8", "requires --model"),
    ((*MEASURE, "--op-s", "1"), "op_s: 1.0", "requires --model"),
    ((*MEASURE, "--in-place"), "in_place: True", "requires --nccl-log or --nccl-tests"),
    ((*MEASURE, "--method", "ols", *NOWHERE), "method: 'ols'", "not used with --server"),
    ((*MEASURE, "--timeout", "9", *NOWHERE), "timeout: 9.0", "not used with --server"),
    ((*MEASURE, "--nccl-tests", "auto", *NOWHERE), "nccl_tests: 'auto'", "not used with --server"),
    ((*LOGS, "--model", "zoo:mlp"), "model: 'zoo:mlp'", "not used with --nccl-log"),
    ((*LOGS, "--no-variants"), "variants: False", "not used with --nccl-log"),
    ((*LOGS, "--timeout", "9"), "timeout: 9.0", "not used with --nccl-log"),
    ((*NCCL, "--backend", "gloo"), "backend: 'gloo'", "not used with --nccl-tests"),
    ((*NCCL, "--launcher", "emulated"), "launcher: 'emulated'", "not used with --nccl-tests"),
)


@pytest.mark.parametrize(("arguments", "named", "limit"), CASES)
def test_an_option_without_effect_is_refused_by_name(
    run: Run, folder: Path, arguments: tuple[str, ...], named: str, limit: str
) -> None:
    calibration = folder / "calib.json"
    calibration.write_text(json.dumps({"schema": "autosbp.calibration/1", **_measured()}))
    filled_in = [argument.replace("{calib}", str(calibration)) for argument in arguments]
    output = ["-o", str(folder / "out.json")] if arguments[0] == "calibrate" else []
    done = run(*filled(tuple(filled_in), folder), *output)
    assert done.exit_code == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert named in line and limit in line
    assert done.stdout == "" and not (folder / "out.json").exists()


def test_a_check_of_workers_reads_no_database(run: Run) -> None:
    done = run("work", "--check", "--database", "sqlite:///x.db")
    assert done.exit_code == 2 and "database: 'sqlite:///x.db'" in done.stderr


def _measured() -> dict[str, object]:
    from autosbp.cluster.spec import load_cluster

    return {"cluster": load_cluster("local:2").to_dict(), "backend": "gloo", "method": "relative", "collectives": []}
