"""Plans for other trainers: the search restricted to what a trainer can express (``autosbp.trainers``).

Each of a trainer's constraints is searched. The search cuts stages anywhere, checkpoints as many blocks as memory
requires and shards each parameter for itself. So its strategies are then made conform: stages of whole layers, all
layers checkpointed or none, all parameters stored alike. The fastest conform strategy that fits is the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.recompute import with_full_checkpointing
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InfeasibleError, InputError, UnsupportedError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import BoxingKey, Plan, Strategy
from autosbp.program.parallelism import DATA, layout_sharded_over, parallelism_of
from autosbp.program.strategy_name import strategy_name
from autosbp.sbp.layout import I, NdSbp, P
from autosbp.search.branch_and_bound.candidate import Candidate, fastest
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import Planner, first_plan
from autosbp.search.problem.cost_weights import GATHER_PER_STEP, GATHER_PER_USE
from autosbp.search.problem.strategy import add_paths, used_layouts
from autosbp.search.progress import Progress, ProgressReporter
from autosbp.trainers import TRAINERS, Constraints, Trainer
from autosbp.trainers.layer_stages import layer_starts


def plan_for(
    name: str,
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None = None,
    options: PlanOptions | None = None,
    progress: Progress | None = None,
    known: Sequence[Strategy] = (),
) -> Plan:
    """The fastest plan that a trainer can express exactly; its document names the trainer.

    Args:
        name: a key of ``trainers.TRAINERS``.
        graph, cluster, calibration, options, progress: as for ``make_plan``.
        known: strategies that are made conform, too.

    Raises:
        InputError: an unknown trainer, or as ``make_plan``.
        InfeasibleError: none of the trainer's strategies meets the options or fits in memory.
        UnsupportedError: the trainer cannot train the model's dtype, or with the optimizer.
    """
    trainer, asked = _trainer(name), options or PlanOptions()
    watch = ProgressReporter(progress)
    plans: list[Plan] = []
    found: list[Candidate] = []
    problems: list[Exception] = []
    for constraints in trainer.constraints:
        wanted = _constrained(trainer, constraints, asked, cluster, with_baselines=not plans)
        if wanted is None:
            continue
        try:
            planner, plan, winner = first_plan(graph, cluster, calibration, wanted, watch)
        except InfeasibleError as error:
            problems.append(error)
            continue
        plans.append(plan)
        strategies = (winner.strategy, *(known if len(plans) == 1 else ()))
        found += Conformer(trainer, planner).conform_each(strategies, problems)
    best = fastest(found)
    if best is None:
        raise _most_useful(problems, name)
    bounds = [each.document["lower_bound_s"] for each in plans]
    bound_s = None if None in bounds else min(bounds)
    evaluations = sum(each.document["evaluations"] for each in plans)
    spent = replace(plans[0], search_s=sum(each.search_s or 0.0 for each in plans))
    return _document(trainer, planner, spent, best, {"evaluations": evaluations, "lower_bound_s": bound_s})


def nearest_known(
    name: str,
    graph: LogicalGraph,
    plan: Plan,
    calibration: Calibration | None,
    options: PlanOptions,
    known: Sequence[Strategy],
) -> Plan | None:
    """The fastest of ``known`` strategies of a plan's task, made conform to a trainer; None if there is none."""
    planner = Planner(graph, Cluster.from_dict(plan.document["cluster"]), calibration, options, None)
    best = fastest(Conformer(_trainer(name), planner).conform_each(known, []))
    return None if best is None else _document(_trainer(name), planner, plan, best, {"evaluations": len(known)})


def _trainer(name: str) -> Trainer:
    if name not in TRAINERS:
        raise InputError("for", name, f"expected one of {', '.join(TRAINERS)}")
    return TRAINERS[name]


def _constrained(
    trainer: Trainer, constraints: Constraints, options: PlanOptions, cluster: Cluster, *, with_baselines: bool
) -> PlanOptions | None:
    """The options with a trainer's constraints; None if they exclude each other."""
    whole = options.global_batch or 8 * cluster.num_devices
    given: dict[str, Any] = {
        "stages": constraints.stages if trainer.schedules else 1,
        "storage": constraints.storage,
        "micro_batch": whole if constraints.has_whole_batch else None,
    }
    for name, value in given.items():
        if value is not None and getattr(options, name) not in (None, value):
            return None
    wanted = {name: value for name, value in given.items() if value is not None}
    schedules = tuple(each.name for each in trainer.schedules if each.name in options.schedules)
    if trainer.schedules and not schedules:
        return None
    if wanted.get("stages", options.stages) != 1 and schedules:
        wanted["schedules"] = schedules
    elif options.stages != 1:
        wanted["schedules"] = PlanOptions().schedules
    return replace(options, grid=constraints.grid, baselines=options.baselines if with_baselines else (), **wanted)


def _most_useful(problems: Sequence[Exception], name: str) -> Exception:
    """The error to raise: a strategy that does not fit says more than one that a trainer cannot express."""
    for kind in (InfeasibleError, UnsupportedError):
        for error in problems:
            if isinstance(error, kind):
                return error
    return InputError("for", name, "the options exclude every strategy of this trainer")


def _document(trainer: Trainer, planner: Planner, plan: Plan, best: Candidate, fields: Mapping[str, Any]) -> Plan:
    """A plan of the same task with a conform strategy in place of its own."""
    step_s, bound_s = best.costs.step_time_s, fields.get("lower_bound_s", plan.document["lower_bound_s"])
    found = parallelism_of(planner.graph, best.strategy)
    more = {
        **fields,
        "trainer": trainer.name,
        "strategy_summary": strategy_name(best.strategy, found, planner.options.precision),
        "lower_bound_s": None if bound_s is None else min(bound_s, step_s),
        "gap": None if bound_s is None else max(0.0, step_s - bound_s) / step_s,
    }
    return plan.with_strategy(best.strategy, best.costs.to_dict(), more)


class Conformer:
    """Makes strategies conform to a trainer, with the cost models and the memory limit of a planner."""

    def __init__(self, trainer: Trainer, planner: Planner) -> None:
        self.trainer, self.planner = trainer, planner
        self.graph, self.precision = planner.graph, planner.options.precision

    def conform_each(self, strategies: Iterable[Strategy], problems: list[Exception]) -> list[Candidate]:
        """The conform strategies; what prevents others is added to ``problems``."""
        found = []
        for strategy in strategies:
            try:
                found.append(self.conform(strategy))
            except (InfeasibleError, UnsupportedError) as error:
                problems.append(error)
        return found

    def conform(self, strategy: Strategy) -> Candidate:
        """The fastest strategy that differs at most in storage, cuts, checkpointing, and that fits.

        Raises:
            UnsupportedError: the trainer can express none of them; names the strategy's own obstacle.
            InfeasibleError: none of them fits in memory.
        """
        problem: UnsupportedError | None = None
        found: list[Candidate] = []
        for each in self._variants(strategy):
            try:
                self.trainer.express(self.graph, each, self.precision)
            except UnsupportedError as error:
                problem = problem or error
                continue
            found.append(self._costed(each))
            if each is strategy:
                break
        if not found:
            raise problem or UnsupportedError(f"{self.trainer.name} cannot express the strategy")
        best = fastest(each for each in found if self.planner.search.coster.has_room(each))
        if best is None:
            needed = min(each.costs.memory_bytes_per_device for each in found)
            raise InfeasibleError("memory_limit_bytes", self.planner.limit, needed, f"as {self.trainer.name} has it")
        return best

    def _costed(self, strategy: Strategy) -> Candidate:
        problems = self.planner.problems
        graph, boxing = problems.bound(strategy.micro_batch), problems.boxing(strategy.mesh)
        return Candidate(strategy, evaluate(graph, strategy, boxing, problems.compute, problems.known_chunks))

    def _variants(self, strategy: Strategy) -> Iterator[Strategy]:
        """The strategy itself, then others, with whole layers in stages."""
        yield strategy
        bound = self.planner.problems.bound(strategy.micro_batch)
        roles = parallelism_of(self.graph, strategy, bound).roles
        data = frozenset(axis for axis, role in enumerate(roles) if role == DATA)
        inner = frozenset(
            axis for axis in data if strategy.mesh.axes[axis].level == len(strategy.mesh.level_counts) - 1
        )
        staged = self._with_whole_layers(strategy, bound)
        if staged is None:
            return
        full = with_full_checkpointing(bound, staged)
        for checkpointed in dict.fromkeys((staged.recompute, (), full.recompute)):
            for axes in dict.fromkeys((frozenset[int](), data, inner)):
                for gather in (GATHER_PER_STEP, GATHER_PER_USE) if axes else (GATHER_PER_STEP,):
                    yield self._stored(replace(staged, recompute=checkpointed), bound, axes, gather)

    def _with_whole_layers(self, strategy: Strategy, bound: LogicalGraph) -> Strategy | None:
        """Cuts at the nearest begin of a layer, or after equal numbers of layers; None if stages are more than layers."""
        pipeline = strategy.pipeline
        if pipeline is None:
            return strategy
        starts = layer_starts(bound)
        place = {node.name: at for at, node in enumerate(bound.nodes)}
        last = max(starts.values(), default=0)
        if self.trainer.cuts_anywhere:
            cuts = [min(starts, key=lambda name: abs(place[name] - place[cut]), default="") for cut in pipeline.cuts]
        else:
            each = last // pipeline.num_chunks
            cuts = [name for name, layers in starts.items() if each and 0 < layers < last and layers % each == 0]
            if last % pipeline.num_chunks:
                return None
        if len(set(cuts)) < len(pipeline.cuts) or "" in cuts:
            return None
        return replace(strategy, pipeline=replace(pipeline, cuts=tuple(cuts), weights_lag=None))

    def _stored(self, strategy: Strategy, bound: LogicalGraph, axes: frozenset[int], gather: str) -> Strategy:
        """The strategy with every trained parameter stored split over ``axes``, where a dim divides evenly."""
        used = used_layouts(bound, dict(strategy.signatures))
        parameters: dict[str, NdSbp] = {}
        paths: dict[BoxingKey, tuple[NdSbp, ...]] = dict(strategy.paths)
        for leaf in bound.parameters:
            read = used.get(leaf.name, strategy.parameters[leaf.name])
            whole = tuple(I if sbp == P else sbp for sbp in read)
            shards = leaf.trained and P not in read
            split = layout_sharded_over(leaf.meta.sizes, read, strategy.mesh, axes) if shards else None
            parameters[leaf.name] = whole if split is None else split
            if split is not None:
                # One all-gather brings several parameters together.
                paths[leaf.meta.sizes, leaf.meta.num_bytes, leaf.meta.is_float, split, read] = (split, read)
        boxing = self.planner.problems.boxing(strategy.mesh)
        add_paths(paths, bound, boxing, dict(strategy.signatures), parameters)
        return replace(strategy, parameters=parameters, paths=paths, gather=gather)
