"""torchtitan: the same configuration as TOML for 0.2 and as Python for 0.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.costmodel.calibration import Calibration
from autosbp.export._base import provenance_lines, required_graph
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from autosbp.trainers import TRAINERS, ExpressedPlan

_OPTIMIZERS = {"adamw": "AdamW"}
_SCHEDULES = {
    GPIPE: "GPipe",
    ONE_F_ONE_B: "1F1B",
    INTERLEAVED: "Interleaved1F1B",
    ZERO_BUBBLE: "InterleavedZeroBubble",
}
"""Names of schedules in ``torch.distributed.pipelining``."""
_SEQUENCE_NOTE = (
    "# torchtitan uses sequence parallelism in norms: an all-gather and a reduce-scatter, with the same bytes, replace",
    "# the plan's all-reduce.",
)
_FLOAT8 = "quantize.linear.float8"
_FLOAT8_IMPORT = "from torchtitan.components.quantization import Float8LinearConverter\n"
_FLOAT8_PYTHON = """
    # torchtitan 0.3 scales rows; the plan's costs are of scales of whole tensors, as in torchtitan 0.2.
    config.compile.enable = True  # fuses the scaling
    converter = Float8LinearConverter.Config(model_compile_enabled="model" in config.compile.components).build()
    config.model_spec.model = converter.convert(config.model_spec.model)\
"""
_PYTHON = '''"""Configuration of torchtitan 0.3; start with --module autosbp_torchtitan --config autosbp."""

{imports}from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3.config_registry import llama3_debugmodel as model_config  # your model's
from torchtitan.trainer import Trainer

TRAINING = {training}
PARALLELISM = {parallelism}


def autosbp() -> Trainer.Config:
    """The model's configuration with the plan's batches, precision, parallelism and activation checkpointing."""
    return apply(model_config())


def apply(config: Trainer.Config) -> Trainer.Config:
    for section, values in ((config.training, TRAINING), (config.parallelism, PARALLELISM)):
        for name, value in values.items():
            setattr(section, name, value)
    config.activation_checkpoint = {checkpointing}{conversion}
    return config
'''


def export_torchtitan(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """Write ``torchtitan.toml`` for torchtitan 0.2 and ``autosbp_torchtitan.py`` for 0.3."""
    found = TRAINERS["torchtitan"].express(required_graph(plan, graph, "torchtitan"), plan.strategy, plan.precision)
    provenance = [f"# {line}" for line in provenance_lines(plan)]
    return {
        "torchtitan.toml": "\n".join(_toml(found, provenance)) + "\n",
        "autosbp_torchtitan.py": "\n".join(provenance) + "\n" + _python(found),
    }


def _training(plan: ExpressedPlan) -> dict[str, Any]:
    mixed, samples = plan.has_float32_master_weights, plan.replica_batch
    return {
        "dtype": "float32" if mixed else plan.dtype,
        "mixed_precision_param": plan.dtype,
        **({"mixed_precision_reduce": "float32"} if mixed else {}),
        "local_batch_size": samples * (plan.strategy.num_micro if plan.staged.num_stages > 1 else 1),
        "global_batch_size": plan.strategy.global_batch,
    }


def _parallelism(plan: ExpressedPlan, *, head: str) -> dict[str, Any]:
    """Fields of the parallelism section; ``head`` is the name of the output layer's module."""
    grid, staged = plan.parallelism, plan.staged
    always = plan.strategy.gather == "use"
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": grid.replicated,
        "data_parallel_shard_degree": grid.sharded,
        **({"fsdp_reshard_after_forward": "always" if always else "never"} if grid.sharded > 1 else {}),
        "tensor_parallel_degree": grid.tensor,
        "pipeline_parallel_degree": staged.num_stages,
        "context_parallel_degree": 1,
    }
    if staged.num_stages > 1:
        parts = [[f"layers.{at}" for at in numbers] for numbers in staged.layer_ranges]
        parts[0].insert(0, "tok_embeddings")
        parts[-1] += ["norm", head]
        found |= {
            "pipeline_parallel_schedule": _SCHEDULES[staged.schedule],
            "pipeline_parallel_microbatch_size": plan.replica_batch,
            "module_fqns_per_model_part": parts,
        }
    return found


def _toml(plan: ExpressedPlan, provenance: list[str]) -> list[str]:
    return [
        *provenance,
        f"# Merge into a job configuration and start {plan.num_ranks} ranks.",
        *(_SEQUENCE_NOTE if plan.parallelism.tensor > 1 and not plan.parallelism.is_sequence_parallel else ()),
        "",
        "[optimizer]",
        f'name = "{_OPTIMIZERS[plan.strategy.optimizer]}"',
        "",
        *(_float8_sections() if plan.is_float8 else []),
        *_section("training", _training(plan)),
        *_section("parallelism", _parallelism(plan, head="output")),
        *_section("activation_checkpoint", {"mode": "full" if plan.checkpointed.layers else "none"})[:-1],
    ]


def _float8_sections() -> list[str]:
    """Sections of dynamic scaling by tensor; torch.compile fuses it."""
    return [
        *_section("model", {"converters": [_FLOAT8]}),
        *_section(_FLOAT8, {"recipe_name": "tensorwise", "enable_fsdp_float8_all_gather": False}),
        *_section("compile", {"enable": True}),
    ]


def _section(name: str, values: Mapping[str, Any]) -> list[str]:
    return [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in values.items()), ""]


def _value(value: object) -> str:
    """TOML of a number, a flag, a string or a list of these."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _python(plan: ExpressedPlan) -> str:
    parallelism = _parallelism(plan, head="lm_head")
    if plan.parallelism.tensor > 1:
        parallelism["enable_sequence_parallel"] = plan.parallelism.is_sequence_parallel
    return _PYTHON.format(
        training=_dict(_training(plan)),
        parallelism=_dict(parallelism),
        checkpointing="FullAC.Config()" if plan.checkpointed.layers else "None",
        imports=_FLOAT8_IMPORT if plan.is_float8 else "",
        conversion=_FLOAT8_PYTHON if plan.is_float8 else "",
    )


def _dict(values: Mapping[str, Any]) -> str:
    return "\n".join(["{", *(f"    {name!r}: {value!r}," for name, value in values.items()), "}"])
