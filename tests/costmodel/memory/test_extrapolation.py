"""Blocks that are left out of a dry run, against running them all."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, make_plan
from autosbp.costmodel.memory import memory_bytes, rank_memory
from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.extrapolation import CopyBoundary, MeteredRegions, RepeatMismatchError, SkippedCopies
from autosbp.costmodel.memory.meta_tensors import MemoryMeter, MetaStorage
from autosbp.costmodel.memory.rank_memory import StepRun
from autosbp.costmodel.memory.stage_memory import ChunkRun, stage_memory
from autosbp.costmodel.pipeline_program import PipelineChunk, PipelineProgram
from autosbp.costmodel.recompute import checkpointing_segments, recomputable_blocks
from autosbp.errors import InputError
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Signature, Strategy
from autosbp.plan.schedules import GPIPE, ZERO_BUBBLE
from autosbp.program.parameter_flow import parameter_flow
from autosbp.sbp.layout import B, I, NdSbp, P, S
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.search.planner import Planner
from tests.costmodel.memory.programs import Program, data_parallel, on_one_device, random_blocks
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

MODELS = {
    "gpt2": True,  # blocks are left out
    "bert-large": True,
    "llama-7b": True,
    "resnet50": False,
    "moe": False,
}


@cache
def planned(model: str, micro_batch: int, storage: str) -> tuple[Strategy, LogicalGraph]:
    """A strategy without stages, and its graph."""
    options = PlanOptions(
        global_batch=64, stages=1, micro_batch=micro_batch, storage=storage, recompute=0, baselines=(),
        memory_limit_bytes=1 << 50,
    )  # fmt: skip
    graph, cluster = graph_of(model), load_cluster("dgx-a100-40g:1")
    strategy = make_plan(graph, cluster, None, options).strategy
    return strategy, Planner(graph, cluster, None, options, None).problems.bound(micro_batch)


def runs_of(strategy: Strategy, graph: LogicalGraph) -> tuple[StepRun, StepRun]:
    """With all blocks, and without those that may be left out."""
    flow = parameter_flow(graph, strategy)
    every, few = (StepRun(graph, strategy, flow, MetaAutograd(MemoryMeter(), device="cuda")) for _ in range(2))
    few.skip_repeats()
    return every, few


@pytest.mark.parametrize("recompute", [None, 0, 5])
@pytest.mark.parametrize("storage", ["as_used", "step", "use"])
@pytest.mark.parametrize("micro_batch", [8, 64])
@pytest.mark.parametrize("model", ["gpt2", "llama-7b"])
@pytest.mark.some(4)
def test_memory_is_that_of_all_blocks(model: str, micro_batch: int, storage: str, recompute: int | None) -> None:
    """Of 8 and 1 microbatches; recomputed but for so many blocks."""
    strategy, graph = planned(model, micro_batch, storage)
    if recompute is not None:
        strategy = replace(strategy, recompute=checkpointing_segments(recomputable_blocks(graph), 1, (), recompute))
    assert memory_bytes(graph, strategy, device="cuda") == dict(rank_memory(graph, strategy, device="cuda").parts)


@pytest.mark.some(2)
@pytest.mark.parametrize("model", MODELS)
def test_blocks_are_left_out_of_models_whose_blocks_hand_on_one_value(model: str) -> None:
    strategy, graph = planned(model, 8, "as_used")
    every, few = runs_of(strategy, graph)
    assert bool(few.repeats.skips) == MODELS[model]
    if few.can_skip_repeats:
        assert few.step() == every.step()
    assert not every.repeats.skips


def test_copies_of_different_sizes_are_reported() -> None:
    """What looks alike, and is not."""
    meter = MemoryMeter()
    regions, skip = MeteredRegions(meter), SkippedCopies(0, 1, 5)
    held = []
    for number, size in enumerate((10, 10, 12)):
        held.append(MetaStorage(meter, size, "activations"))
        regions.cross_boundary(CopyBoundary(skip, number))
    with pytest.raises(RepeatMismatchError):
        regions.fullest()


@pytest.mark.parametrize(("kept", "rise", "last"), [(10, 3, 0), (10, 30, 0), (-10, 3, 0), (0, 7, 50)])
def test_the_peak_of_omitted_blocks_is_at_one_of_their_ends(kept: int, rise: int, last: int) -> None:
    """Blocks that keep, or free, so many bytes and take ``rise`` more meanwhile; ``last`` as many when all are over."""
    count = 5

    def run(meter: MemoryMeter, blocks: int, regions: MeteredRegions, skip: SkippedCopies | None) -> Counter[str]:
        held = [MetaStorage(meter, 10, "activations") for _ in range(20)]
        for block in range(blocks):
            if skip is not None and block:
                regions.cross_boundary(CopyBoundary(skip, block - 1))
            above = MetaStorage(meter, rise, "temporaries")
            del above
            if kept > 0:
                held.append(MetaStorage(meter, kept, "activations"))
            elif kept < 0:
                held.pop()
        above = MetaStorage(meter, last, "temporaries")
        del above
        return regions.fullest()

    every, few = MemoryMeter(), MemoryMeter()
    expected = run(every, 4 + count, MeteredRegions(every), None)
    left_out = MeteredRegions(few)
    assert run(few, 4, left_out, SkippedCopies(0, 1, count)) == expected
    assert left_out.added.get("activations", 0) == count * kept


class EveryStep(StepRun):
    """All passes, one after the other."""

    @property
    def gathers_are_uniform(self) -> bool:
        return False


class EveryPass(ChunkRun):
    """All passes of a chunk."""

    @property
    def last_microbatch_is_uniform(self) -> bool:
        return False


def every_step(graph: LogicalGraph, strategy: Strategy, device: str) -> Counter[str]:
    return EveryStep(
        graph, strategy, parameter_flow(graph, strategy), MetaAutograd(MemoryMeter(), device=device)
    ).step()


def tensors(graph: LogicalGraph, strategy: Strategy, device: str) -> Counter[str]:
    """What a step takes but for the optimizer's state, and what libraries hold."""
    return Counter({**memory_bytes(graph, strategy, device=device), "optimizer": 0, "libraries": 0})


def phases(run: StepRun, monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """What each phase of a step takes; that has more to tell than the fullest of them."""
    found: list[Counter[str]] = []
    fullest = MeteredRegions.fullest

    def kept(self: MeteredRegions) -> Counter[str]:
        found.append(fullest(self))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(MeteredRegions, "fullest", kept)
        run.step()
    return found


@pytest.mark.parametrize("first", range(0, 200, 50))
@pytest.mark.some(4)
def test_made_up_blocks_take_what_all_of_them_do(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one device, in each phase of a step: residuals, blocks that read two back, what all share, squares of weights."""
    compared = 0
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        graph, runs, _ = random_blocks(rng)
        strategy = on_one_device(graph, 2 * rng.choice([1, 2, 3, 5]), 2, recompute=runs)
        flow, device = parameter_flow(graph, strategy), rng.choice(["cpu", "cuda"])
        every, few = (StepRun(graph, strategy, flow, MetaAutograd(MemoryMeter(), device=device)) for _ in range(2))
        few.skip_repeats()
        if few.repeats.skips:
            try:
                found = phases(few, monkeypatch)
            except RepeatMismatchError:
                continue
            assert found == phases(every, monkeypatch), seed
            compared += 1
        assert tensors(graph, strategy, device) == every_step(graph, strategy, device), seed
    assert compared > 5


@pytest.mark.parametrize("first", range(0, 80, 40))
@pytest.mark.some(2)
def test_made_up_chunks_take_what_all_of_their_blocks_do(first: int) -> None:
    compared = 0
    for seed in range(first, first + 40):
        rng = random.Random(seed)
        graph, runs, begins = random_blocks(rng)
        cut = rng.choice([begins[1], begins[-1]])
        inside = [run for run in runs if int(run[0][1:]) < int(cut[1:]) <= int(run[1][1:])]
        pipeline = Pipeline(2, (cut,), rng.choice([GPIPE, ZERO_BUBBLE]))
        strategy = on_one_device(
            graph, 2 * rng.choice([2, 4, 6]), 2, pipeline=pipeline, recompute=tuple(r for r in runs if r not in inside)
        )
        try:
            chunks = PipelineProgram(graph, strategy).chunks
        except InputError:  # an op of data is no cut
            continue
        for chunk in chunks:
            compared += compare(chunk, strategy, rng.choice(["cpu", "cuda"]), defers=pipeline.schedule == ZERO_BUBBLE)
    assert compared > 5


def compare(chunk: PipelineChunk, strategy: Strategy, device: str, *, defers: bool) -> bool:
    """Whether blocks were left out, which makes no difference."""
    few, every = (
        kind(chunk, strategy, MetaAutograd(MemoryMeter(), device=device), defers=defers)
        for kind in (ChunkRun, EveryPass)
    )
    few.skip_repeats()
    try:
        found = few.peaks()
    except RepeatMismatchError:
        return False
    assert found == every.peaks()
    assert (few.kept, few.waiting) == (every.kept, every.waiting)
    return bool(few.repeats.skips)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("bucket_bytes", [1000, 20_000, 25 << 20])
def test_gradients_that_are_alone_in_their_messages_stay_where_they_are(count: int, bucket_bytes: int) -> None:
    """And those that are not, go to buckets that are there from the start; the optimizer takes most, of one large weight."""
    made = Program("bfloat16")
    last = made.input("x", 4, 64)
    for at in range(12):
        last = made.relu(made.linear(last, made.weight(f"w{at}", 64, 64)))
    graph = made.graph(made.sum(made.linear(last, made.weight("large", 4096, 64))))
    strategy = data_parallel(graph, 4 * count, 4, bucket_bytes=bucket_bytes)
    assert memory_bytes(graph, strategy) == dict(rank_memory(graph, strategy).parts)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("recomputed", [False, True])
def test_copies_of_several_blocks_in_one_message(count: int, recomputed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Program("bfloat16")
    last = made.input("x", 4, 64)
    for at in range(36):
        last = made.relu(made.linear(last, made.weight(f"w{at}", 64, 64)))
    graph = made.graph(made.sum(last))
    runs = tuple((f"n{2 * at + 1}", f"n{2 * at + 2}") for at in range(36)) if recomputed else ()
    strategy = data_parallel(graph, 4 * count, 4, split=True, bucket_bytes=100_000, gather="use", recompute=runs)
    every, few = runs_of(strategy, graph)
    assert few.repeats.skips
    assert phases(few, monkeypatch) == phases(every, monkeypatch)
    assert memory_bytes(graph, strategy) == dict(rank_memory(graph, strategy).parts)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_chunks_may_send_on_what_many_blocks_made(count: int) -> None:
    """Long skips, as of U-Nets, over a cut."""
    made, kept, cut = Program(), list[str](), ""
    last = made.linear(made.input("x", 32, 16), made.weight("in", 16, 16))
    for at in range(10):
        last = made.relu(made.linear(last, made.weight(f"a{at}", 16, 16)))
        kept.append(last)
    for at in range(10):
        last = made.add(last, kept.pop())
        cut = cut or last
        last = made.relu(made.linear(last, made.weight(f"b{at}", 16, 16)))
    graph = made.graph(made.sum(last))
    strategy = on_one_device(graph, 4 * count, 4, pipeline=Pipeline(2, (cut,), GPIPE))
    stages = PipelineProgram(graph, strategy)
    for chunk in stages.chunks:
        for defers in (False, True):
            compare(chunk, strategy, "cpu", defers=defers)
    assert sum(stage_memory(stages, 0).values()) > 0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_two_copies_of_a_parameter_that_are_not_flat(count: int) -> None:
    """Split over rows, and read whole and split over columns: the last microbatch adds their gradients up as they come."""
    made = Program("bfloat16")
    one, other, third = (made.input(name, 4, 64) for name in ("x1", "x2", "x3"))
    made.weight("w", 64, 64)
    made.weight("large", 4096, 64)
    signatures: dict[str, Signature] = {}

    def signed(name: str, ins: tuple[NdSbp, ...], out: NdSbp) -> str:
        signatures[name] = Signature(ins, (out,))
        return name

    whole, rows, columns, partial = (B,), (S(0),), (S(1),), (P,)
    sums = [
        signed(made.sum(signed(made.linear(x, weight), ins, out)), (out,), partial)
        for x, weight, ins, out in (
            (one, "w", (rows, whole), rows),
            (other, "w", (columns, columns), partial),
            (third, "large", (whole, rows), columns),
        )
    ]  # fmt: skip
    loss = sums[0]
    for each in sums[1:]:
        loss = signed(made.add(loss, each), (partial, partial), partial)
    graph = made.graph(loss)
    size = graph.parameters[0].meta.num_bytes
    paths = {((64, 64), size, True, rows, to): (rows, to) for to in (whole, columns)}
    paths[(), graph.meta(graph.loss).num_bytes, True, partial, (I,)] = (partial, (I,))
    mesh = Mesh((Axis("d", 2, 0),), (2,))
    strategy = Strategy(mesh, signatures, {"w": rows, "large": rows}, paths, 4 * count, 4, "sgd", "use")
    assert tensors(graph, strategy, "cpu") == every_step(graph, strategy, "cpu")
