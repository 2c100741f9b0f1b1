"""``autosbp learn``: correct a calibration with measurements of trials, or undo the last correction."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._exit_codes import console, note, print_json
from autosbp.cli._files import check_output, read_calibration, write_json
from autosbp.cli._options import AsJson, Output
from autosbp.cli._text_tables import table
from autosbp.errors import InputError
from autosbp.utils.formatting import seconds
from autosbp.utils.tempdirs import locked_file

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration, Correction
    from autosbp.costmodel.trial_feedback import TrialPredictions

CalibrationFile = Annotated[str, typer.Argument(metavar="CALIBRATION", help="A calibration .json.", show_default=False)]
Trials = Annotated[
    list[Path] | None,
    typer.Option("--trial", metavar="DIR", help="Work folder of a trial (autosbp trial --workdir DIR); repeatable."),
]
Undo = Annotated[bool, typer.Option("--undo", help="Undo the last correction.")]


def learn(
    calibration: CalibrationFile,
    trial: Trials = None,
    undo: Undo = False,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Correct a calibration with measurements of trials, so that predictions improve with use.

    The correction is fitted to the given trials only. It replaces an earlier correction, which --undo restores. The
    input file does not change unless it is also the output.
    """
    if output is None and not as_json:
        raise InputError("output", None, "required: -o FILE or --json")
    if undo == bool(trial):
        raise InputError("trial", [str(folder) for folder in trial or ()], "required: either --trial DIR or --undo")
    check_output(output)
    with _lock_in_place_update(Path(calibration), output):
        before = read_calibration(calibration)
        assert before is not None
        after, lessons = _without_last_correction(before) if undo else _corrected(before, trial or [])
        if output is not None:
            write_json(output, {**after.to_dict(), "calibration_id": after.calibration_id})
            note(f"wrote {output}")
    if as_json:
        print_json(_document(before, after, lessons))
    else:
        _show(after, lessons)


def _lock_in_place_update(calibration: Path, output: Path | None) -> AbstractContextManager[None]:
    """Lock the file if it is both input and output: concurrent updates would lose a correction and its undo record."""
    replaced = output is not None and output.is_file() and calibration.is_file() and output.samefile(calibration)
    return locked_file(calibration) if replaced else nullcontext()


def _corrected(before: Calibration, folders: list[Path]) -> tuple[Calibration, tuple[TrialPredictions, ...]]:
    from autosbp.api import learn_from_trials

    taught = learn_from_trials(before, folders)
    return taught.calibration, taught.lessons


def _without_last_correction(before: Calibration) -> tuple[Calibration, tuple[TrialPredictions, ...]]:
    from autosbp.costmodel.calibration_correction import drop_last_correction

    return drop_last_correction(before), ()


def _document(before: Calibration, after: Calibration, lessons: tuple[TrialPredictions, ...]) -> dict[str, Any]:
    return {
        "calibration_id": after.calibration_id,
        "from_calibration_id": before.calibration_id,
        "correction": asdict(after.correction),
        "trials": [asdict(lesson) for lesson in lessons],
    }


def _show(after: Calibration, lessons: tuple[TrialPredictions, ...]) -> None:
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
    """Describe a correction in one sentence."""
    if not correction.num_trials:
        return "no corrections from trials"
    return (
        f"corrected by {correction.num_trials} trial{'s' if correction.num_trials > 1 else ''}: ops x "
        f"{correction.compute:.3f}, collectives x {correction.network:.3f}, idle time + "
        f"{seconds(correction.waiting_s)}"
    )
