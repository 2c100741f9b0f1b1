"""Models, clusters and batches to plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autosbp.cluster.spec import load_cluster

SAMPLES = {
    "mlp": 64, "vgg13": 32, "resnet50": 32, "wide-deep": 64, "moe": 8, "gpt2": 8, "gpt2-1.5b": 8, "bert-large": 16,
    "t5-large": 8, "vit-large": 16, "llama-7b": 2, "llama-70b": 1,
}  # fmt: skip
"""Models of the zoo, with the samples per device and step."""
CLUSTERS = (
    "aws-p4d:4", "aws-p5:4", "gcp-a100-16:2", "dgx-a100-80g:4", "dgx-h100:16", "summit:4", "piz-daint:64",
)  # fmt: skip
OTHERS = (
    ("gpt2-1.5b", "aws-p4d:4", 128, None, "fp32"),
    ("gpt2", "gcp-a100-16:2", 256, None, "bf16"),
    ("t5-large", "gcp-a100-16:2", 512, None, "bf16"),
    ("bert-large", "gcp-a100-16:2", 1024, None, "bf16"),
    ("gpt2", "piz-daint:16", 16, None, "fp32"),
    ("gpt2-1.5b", "dgx-a100-80g:2", 128, 10 * 10**9, "bf16"),
)
"""Further cases: model, cluster, batch, memory limit per device in bytes, precision."""


@dataclass(frozen=True)
class Case:
    """A case; ``limit_bytes`` is a device's memory limit, None for the device's own memory."""

    model: str
    cluster: str
    batch: int
    limit_bytes: int | None = None
    precision: str = "fp32"

    @property
    def name(self) -> str:
        limited = "" if self.limit_bytes is None else f",{self.limit_bytes / 1e9:g}GB"
        return f"{self.model}@{self.cluster},{self.batch},{self.precision}{limited}"


def cases() -> Iterator[Case]:
    """Every model on every cluster, then the further cases."""
    for model, samples in SAMPLES.items():
        for cluster in CLUSTERS:
            yield Case(model, cluster, samples * load_cluster(cluster).num_devices)
    for other in OTHERS:
        yield Case(*other)
