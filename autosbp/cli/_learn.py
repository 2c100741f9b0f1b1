"""``autosbp learn``: correct a calibration by what trials measured, or take the last correction back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._files import check_output, read_calibration, write_json
from autosbp.cli._format import table
from autosbp.cli._options import AsJson, Output
from autosbp.cli._run import console, note, print_json
from autosbp.errors import InputError
from autosbp.scratch import alone_with
from autosbp.units import seconds

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration, Correction
    from autosbp.lessons import Lesson

CalibrationFile = Annotated[str, typer.Argument(metavar="CALIBRATION", help="A calibration .json.", show_default=False)]
Trials = Annotated[
    list[Path] | None, typer.Option("--trial", metavar="DIR", help="What autosbp trial --workdir DIR kept; repeatable.")
]
Undo = Annotated[bool, typer.Option("--undo", help="Take the last correction back instead.")]


def learn(
    calibration: CalibrationFile,
    trial: Trials = None,
    undo: Undo = False,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Correct a calibration by what trials measured, so that predictions improve with use.

    The correction is learned from the trials named here alone, and takes the place of an earlier one, which --undo
    brings back. The file that is read stays as it is, unless it is also the output.
    """
    if output is None and not as_json:
        raise InputError("output", None, "-o FILE is expected, or --json")
    if undo == bool(trial):
        raise InputError("trial", [str(folder) for folder in trial or ()], "either --trial DIR or --undo is expected")
    check_output(output)
    with _alone(Path(calibration), output):
        before = read_calibration(calibration)
        assert before is not None
        after, lessons = _undone(before) if undo else _taught(before, trial or [])
        if output is not None:
            write_json(output, {**after.to_dict(), "calibration_id": after.calibration_id})
            note(f"wrote {output}")
    if as_json:
        print_json(_document(before, after, lessons))
    else:
        _show(after, lessons)


def _alone(calibration: Path, output: Path | None) -> AbstractContextManager[None]:
    """Where the file that is read is replaced, one at a time: else a correction would be lost, with its way back."""
    replaced = output is not None and output.is_file() and calibration.is_file() and output.samefile(calibration)
    return alone_with(calibration) if replaced else nullcontext()


def _taught(before: Calibration, folders: list[Path]) -> tuple[Calibration, tuple[Lesson, ...]]:
    from autosbp.api import learn_from_trials

    taught = learn_from_trials(before, folders)
    return taught.calibration, taught.lessons


def _undone(before: Calibration) -> tuple[Calibration, tuple[Lesson, ...]]:
    from autosbp.costmodel.learning import unlearn

    return unlearn(before), ()


def _document(before: Calibration, after: Calibration, lessons: tuple[Lesson, ...]) -> dict[str, Any]:
    return {
        "calibration_id": after.calibration_id,
        "from_calibration_id": before.calibration_id,
        "correction": asdict(after.correction),
        "trials": [asdict(lesson) for lesson in lessons],
    }


def _show(after: Calibration, lessons: tuple[Lesson, ...]) -> None:
    out = console()
    rows = [
        (
            lesson.trial,
            lesson.plan_id,
            _with_error(lesson.before_s, lesson.measured_s),
            _with_error(lesson.after_s, lesson.measured_s),
            seconds(lesson.measured_s),
        )
        for lesson in lessons
    ]
    if rows:
        columns = ("trial", "plan", "predicted before", "predicted after", "measured")
        out.print(table(f"{after.calibration_id} of {after.cluster.name}", columns, rows, 2))
    out.print(describe(after.correction))


def _with_error(predicted_s: float, measured_s: float) -> str:
    return f"{seconds(predicted_s)} ({100 * (predicted_s / measured_s - 1):+.1f} %)"


def describe(correction: Correction) -> str:
    """A correction in words."""
    if not correction.num_trials:
        return "no corrections: no trial has taught it"
    return (
        f"corrected by {correction.num_trials} trial{'s' if correction.num_trials > 1 else ''}: ops x "
        f"{correction.compute:.3f}, collectives x {correction.network:.3f}, waiting + {seconds(correction.waiting_s)}"
    )
