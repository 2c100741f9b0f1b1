"""Pins: layouts that the user fixes, while search chooses the rest.

A pin is ``name: layout``. For a parameter, or a pattern of names such as ``tables.*.weight``, the layout says how it is
stored and used, ``S0``, or how it is stored and to what it is boxed for its use, ``S0 -> B``. For an op, it is the
layout of its first output. A layout has one entry for all mesh axes, or one per axis, outermost first: ``B,S0,S0``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.sbp.boxing import is_even
from autosbp.sbp.layout import NdSbp, Sbp, format_nd_sbp, parse_nd_sbp
from autosbp.sbp.mesh import Mesh
from autosbp.search.problem.mesh_views import tensor_parallel_view
from autosbp.search.problem.op_clusters import OpCluster, form_clusters, names_of, useful_options


@dataclass(frozen=True, slots=True)
class Pins:
    """Fixed layouts on one mesh: ``used`` of parameters as ops read them, ``stored`` of parameters, ``made`` of op outputs."""

    used: Mapping[str, NdSbp]
    stored: Mapping[str, NdSbp]
    made: Mapping[str, NdSbp]

    def __bool__(self) -> bool:
        return bool(self.used or self.made)

    @property
    def names(self) -> frozenset[str]:
        """Names of the pinned parameters and ops. Clusters that differ in them are of different classes."""
        return frozenset((*self.used, *self.made))

    @property
    def is_storage_unsharded(self) -> bool:
        """Whether every pinned parameter is stored in the layout in which it is used."""
        return all(self.used[name] == own for name, own in self.stored.items())

    def __call__(self, cluster: OpCluster, axis: int, option: int) -> bool:
        """Whether an option of a cluster on one axis agrees with every pin."""
        for node, chosen in zip(cluster.nodes, cluster.options[option], strict=True):
            if node.name in self.made and chosen.outs[0] != self.made[node.name][axis]:
                return False
            for ref, sbp in zip(node.refs(), chosen.ins, strict=True):
                if ref.name in self.used and sbp != self.used[ref.name][axis]:
                    return False
        return True

    def on(self, mesh: Mesh, view: Mesh) -> Pins | None:
        """The pins of ``mesh`` on a view that merges some of its axes; None if they differ between merged axes."""
        blocks, at = [], 0
        for merged in view.axes:
            first, size = at, 1
            while size < merged.size:
                size, at = size * mesh.axes[at].size, at + 1
            blocks.append(slice(first, at))
        layouts = [*self.used.values(), *self.stored.values(), *self.made.values()]
        if any(len(set(layout[block])) > 1 for layout in layouts for block in blocks):
            return None
        return Pins(*(_merged(part, blocks) for part in (self.used, self.stored, self.made)))


def _merged(layouts: Mapping[str, NdSbp], blocks: Sequence[slice]) -> dict[str, NdSbp]:
    return {name: tuple(layout[block.start] for block in blocks) for name, layout in layouts.items()}


def pinned_views(pins: Pins, mesh: Mesh, views: Iterable[Mesh]) -> list[tuple[Mesh, Pins]]:
    """The views that can express the pins.

    If the pins treat all axes of a level alike, the view with one axis per level comes first: there, one message over
    all axes may replace several over one axis each.

    Raises:
        InputError: no view can express them.
    """
    whole = tensor_parallel_view(mesh, 0)[0]
    found = [(view, own) for view in dict.fromkeys((whole, *views)) if (own := pins.on(mesh, view)) is not None]
    if not found:
        raise InputError(
            "pins", mesh.ndim, ("expected layouts that distinguish at most three groups of neighbouring axes")
        )
    return found


def read_pins(graph: LogicalGraph, mesh: Mesh, pins: Mapping[str, str]) -> Pins:
    """Checked pins of a graph's parameters and ops. Exact names override patterns, and longer patterns override shorter ones.

    Raises:
        InputError: names the pin, for an unknown name, or a layout that cannot be parsed, that the op does not support,
            or that does not split evenly; lists the legal ones.
        InfeasibleError: layouts of an op contradict each other.
    """
    if not pins:
        return Pins({}, {}, {})
    reader = _Reader(graph.bind(**graph.symbols), mesh)
    for name, pattern in reader.named(pins).items():
        try:
            reader.read(name, pins[pattern])
        except InputError as error:
            if pattern == name:
                raise
            raise InputError(f"pins.{pattern}", error.value, f"for {name}: {error.limit}") from None
    found = Pins(reader.used, reader.stored, reader.made)
    for cluster in form_clusters(reader.graph):
        for axis in range(mesh.ndim):
            if not any(found(cluster, axis, option) for option in range(len(cluster.options))):
                raise _contradiction(found, cluster, axis)
    return found


def _contradiction(pins: Pins, cluster: OpCluster, axis: int) -> InfeasibleError:
    """Error for a cluster with no option that agrees with all pins of its ops."""
    given = {
        name: str(layouts[name][axis])
        for layouts in (pins.used, pins.made)
        for name in sorted(names_of(cluster) & set(layouts))
    }
    ops = ", ".join(
        node.name for node in cluster.nodes if node.name in given or set(given) & {r.name for r in node.refs()}
    )
    first = next(node for node in cluster.nodes if node.name in given or set(given) & {r.name for r in node.refs()})
    at = cluster.nodes.index(first)
    rows = "; ".join(
        f"{' '.join(map(str, row[at].ins))} -> {' '.join(map(str, row[at].outs))}" for row in cluster.options
    )
    text = ", ".join(f"{name}={layout}" for name, layout in given.items())
    return InfeasibleError(
        "pins", text, None, f"the layouts of {ops} are incompatible; {first.name} ({first.op}) has {rows}"
    )


class _Reader:
    def __init__(self, graph: LogicalGraph, mesh: Mesh) -> None:
        self.graph, self.mesh = graph, mesh
        self.ops = {node.name: node for node in graph.nodes if node.name in graph.parameter_dependent}
        self.sizes = {leaf.name: leaf.meta.sizes for leaf in graph.parameters}
        self.used: dict[str, NdSbp] = {}
        self.stored: dict[str, NdSbp] = {}
        self.made: dict[str, NdSbp] = {}

    def named(self, pins: Mapping[str, str]) -> dict[str, str]:
        """The key of ``pins`` that applies to each parameter and op."""
        found: dict[str, str] = {}
        for key in sorted(pins, key=lambda each: (each in self.sizes or each in self.ops, len(each), each)):
            names = [key] if key in self.ops else [name for name in self.sizes if fnmatchcase(name, key)]
            if not names:
                near = get_close_matches(key, [*self.sizes, *self.ops], n=3, cutoff=0.0)
                raise InputError("pins", key, f"expected a parameter or op, such as {', '.join(near)}")
            found.update(dict.fromkeys(names, key))
        return found

    def read(self, name: str, text: str) -> None:
        field = f"pins.{name}"
        first, arrow, second = (part.strip() for part in text.partition("->"))
        layout = self._layout(field, second if arrow else first)
        if name in self.sizes:
            self._use(field, name, layout)
            self._store(field, name, self._layout(field, first), apart=bool(arrow))
            return
        if arrow:
            raise InputError(field, text, "expected one layout for an op; only parameters have a stored layout")
        options = useful_options(self.graph, self.ops[name])
        _check_legal(field, layout, {option.outs[0] for option in options}, self.ops[name])
        self.made[name] = layout

    def _use(self, field: str, name: str, layout: NdSbp) -> None:
        for node in self.ops.values():
            for position, ref in enumerate(node.refs()):
                if ref.name == name:
                    options = useful_options(self.graph, node)
                    _check_legal(field, layout, {option.ins[position] for option in options}, node)
        self._check_even(field, name, layout)
        self.used[name] = layout

    def _store(self, field: str, name: str, layout: NdSbp, *, apart: bool) -> None:
        partial = any(sbp.is_partial for sbp in layout)
        if partial and apart:
            raise InputError(field, format_nd_sbp(layout), "expected S<dim>, B or I for a stored parameter")
        self._check_even(field, name, layout)
        if not partial:
            self.stored[name] = layout

    def _check_even(self, field: str, name: str, layout: NdSbp) -> None:
        if not is_even(self.sizes[name], layout, self.mesh):
            limit = f"expected an even split of {list(self.sizes[name])} over {self.mesh.shape}"
            raise InputError(field, format_nd_sbp(layout), limit)

    def _layout(self, field: str, text: str) -> NdSbp:
        """A layout with one entry per mesh axis; a single entry stands for all axes."""
        try:
            layout = parse_nd_sbp(text)
        except InputError as error:
            raise InputError(field, text, error.limit) from None
        if len(layout) not in (1, self.mesh.ndim):
            raise InputError(field, text, f"expected one entry, or one for each of {self.mesh.ndim} mesh axes")
        return layout if len(layout) == self.mesh.ndim else layout * self.mesh.ndim


def _check_legal(field: str, layout: NdSbp, legal: set[Sbp], node: Node) -> None:
    for sbp in layout:
        if sbp not in legal:
            known = ", ".join(sorted(map(str, legal)))
            raise InputError(field, str(sbp), f"expected one of {known} for {node.name} ({node.op})")
