"""Choose the transformers class that trains a config, and the contents of its labels."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.errors import InputError

# Transformers' own tables from model type to class name, with the contents of ``labels``; the usual task first.
_TASKS: Mapping[str, str] = {
    "SPEECH_SEQ_2_SEQ": "tokens",
    "SEQ_TO_SEQ_CAUSAL_LM": "tokens",
    "PRETRAINING": "tokens",
    "CAUSAL_LM": "tokens",
    "MASKED_LM": "tokens",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "none",
    "IMAGE_CLASSIFICATION": "class",
    "AUDIO_CLASSIFICATION": "class",
    "VIDEO_CLASSIFICATION": "class",
    "SEQUENCE_CLASSIFICATION": "class",
    "TOKEN_CLASSIFICATION": "token classes",
    "MULTIPLE_CHOICE": "choice",
    "NEXT_SENTENCE_PREDICTION": "pair",
    "QUESTION_ANSWERING": "span",
    "SEMANTIC_SEGMENTATION": "pixel classes",
    "DEPTH_ESTIMATION": "pixels",
    "IMAGE_TEXT_TO_TEXT": "tokens",
    "MULTIMODAL_LM": "tokens",
    "AUDIO_FRAME_CLASSIFICATION": "token classes",
    "AUDIO_XVECTOR": "class",
    "CTC": "transcript",
}
_LABELS = ("labels", "start_positions", "next_sentence_label", "return_loss")


@dataclass(frozen=True)
class TrainingClass:
    """A model class, the contents of its labels (a value of ``_TASKS``), and a note if the config names another class."""

    cls: Any
    labels: str
    note: str = ""


def training_class(hf_config: Any, document: Mapping[str, Any]) -> TrainingClass:
    """The class that ``architectures`` names if transformers has it and it computes a loss, else the usual one."""
    named = document.get("architectures") or []
    if not isinstance(named, (list, tuple)) or any(not isinstance(name, str) for name in named):
        raise InputError("config.architectures", named, "expected a list of class names")
    for name in named:
        cls = _model_class(name)
        if cls is not None and (_takes_labels(cls) or name in _names("PRETRAINING")):
            return TrainingClass(cls, _labels_of(name) if _takes_labels(cls) else "none")
    for task, labels in _TASKS.items():
        for each in _as_tuple(_table(task).get(hf_config.model_type)):
            cls = _model_class(each)
            if cls is not None and _takes_labels(cls):
                return TrainingClass(cls, _labels_of(each) if task == "PRETRAINING" else labels, _note(named, each))
    limit = (
        "expected a model whose class computes a loss from label tensors; pass others, such as those "
        "that match lists of targets, as package.module:factory, with a module that returns the loss"
    )
    raise InputError("config.model_type", hf_config.model_type, limit)


def _note(named: Any, chosen: str) -> str:
    if not named:
        return ""
    why = "has no loss" if _model_class(named[0]) is not None else "is not in the installed transformers"
    return f"{named[0]} {why}; capturing {chosen}, the default class of the model type"


def _model_class(name: str) -> Any:
    """The transformers model class of that name; None for anything else."""
    import transformers

    cls = getattr(transformers, name, None)
    return cls if inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel) else None


def _table(task: str) -> Mapping[str, Any]:
    from transformers.models.auto import modeling_auto

    table: Mapping[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {})
    return table


def _as_tuple(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def _names(task: str) -> Iterator[str]:
    for entry in _table(task).values():
        yield from _as_tuple(entry)


def _labels_of(name: str) -> str:
    """Contents of a class's labels, by the table that lists the class."""
    tasks = (task for task in _TASKS if task != "PRETRAINING" and name in _names(task))
    return _TASKS[next(tasks, "CAUSAL_LM")]


def _takes_labels(cls: Any) -> bool:
    parameters = inspect.signature(cls.forward).parameters
    return any(name in parameters for name in _LABELS)
