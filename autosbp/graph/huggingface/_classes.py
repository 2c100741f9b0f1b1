"""Which class of transformers a config is trained as, and what its labels are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.errors import InputError

# Transformers' own tables from model type to class name, with what ``labels`` holds there; the usual task first.
_TASKS: Mapping[str, str] = {
    "SPEECH_SEQ_2_SEQ": "tokens",
    "SEQ_TO_SEQ_CAUSAL_LM": "tokens",
    "PRETRAINING": "tokens",
    "CAUSAL_LM": "tokens",
    "MASKED_LM": "tokens",
    "IMAGE_CLASSIFICATION": "class",
    "AUDIO_CLASSIFICATION": "class",
    "VIDEO_CLASSIFICATION": "class",
    "SEQUENCE_CLASSIFICATION": "class",
    "TOKEN_CLASSIFICATION": "token classes",
    "MULTIPLE_CHOICE": "choice",
    "NEXT_SENTENCE_PREDICTION": "pair",
    "QUESTION_ANSWERING": "span",
    "SEMANTIC_SEGMENTATION": "pixel classes",
    "IMAGE_TEXT_TO_TEXT": "tokens",
    "CTC": "transcript",
}
_LABELS = ("labels", "start_positions", "next_sentence_label")


@dataclass(frozen=True)
class TrainingClass:
    """A model class and what its labels hold (a value of ``_TASKS``)."""

    cls: Any
    labels: str


def training_class(hf_config: Any, document: Mapping[str, Any]) -> TrainingClass:
    """The class that ``architectures`` names where it is transformers' own and has a loss, else the usual one."""
    import transformers

    named = document.get("architectures") or []
    if not isinstance(named, (list, tuple)) or any(not isinstance(name, str) for name in named):
        raise InputError("config.architectures", named, "a list of class names is expected")
    for name in named:
        cls = getattr(transformers, name, None)
        if inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel) and _has_loss(cls):
            return TrainingClass(cls, _labels_of(name))
    for task, labels in _TASKS.items():
        name = _table(task).get(hf_config.model_type)
        for each in (name,) if isinstance(name, str) else name or ():
            cls = getattr(transformers, each, None)
            if cls is not None and _has_loss(cls):
                return TrainingClass(cls, _labels_of(each) if task == "PRETRAINING" else labels)
    limit = "a model that transformers can train is expected: a class whose forward takes labels"
    raise InputError("config.model_type", hf_config.model_type, limit)


def _table(task: str) -> Mapping[str, Any]:
    from transformers.models.auto import modeling_auto

    table: Mapping[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {})
    return table


def _labels_of(name: str) -> str:
    """What the labels of a class hold, by the table that lists it."""
    for task, labels in _TASKS.items():
        if task == "PRETRAINING":
            continue
        if any(name == each or (isinstance(each, (list, tuple)) and name in each) for each in _table(task).values()):
            return labels
    return "tokens"


def _has_loss(cls: Any) -> bool:
    parameters = inspect.signature(cls.forward).parameters
    return any(name in parameters for name in _LABELS)
