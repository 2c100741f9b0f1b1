"""Split fused projections into one linear per part: ``linear(x, w)`` whose output is only read in slices.

A part takes rows of the weight. The slices may follow ``reshape`` and ``permute``; then a part's rows are a slice of
each of several equal blocks of rows, as in a packed query, key and value whose heads come first
(``b s (h 3 d) -> b s h 3 d``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autosbp.graph.ir import LogicalGraph, Node, Parameter, Ref, TensorMeta
from autosbp.graph.passes._graph_edits import consumers, rebuild, substitute
from autosbp.graph.passes._op_rewrites import NodeBuilder, Shape, sizes
from autosbp.graph.symbolic_dims import evaluate, symbols_of

_PRIME = 1_000_003  # stands for the batch when shapes are matched: no other size is a multiple of it
_VIEWS = frozenset(("aten.reshape.default", "aten.permute.default"))
_SAME_PLACE = frozenset(
    f"aten.{name}" for name in (
        "mul.Tensor", "add.Tensor", "sub.Tensor", "neg.default", "reshape.default", "permute.default", "slice.Tensor",
        "to.dtype", "expand.default", "cat.default", "cos.default", "sin.default",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowDigit:
    """A dim that indexes the weight's rows like a digit.

    row = (o * size + digit) * inner + i, with o < ``outer`` and i < ``inner``.
    """

    outer: int
    size: int
    inner: int


Dims = tuple[RowDigit | None, ...]


@dataclass(frozen=True, slots=True)
class SplitPoint:
    """Where a linear's output is split into slices.

    ``path`` lists the views from the linear to the slices, each with the digits of its dims; ``slices`` cut the dim
    ``digit``.
    """

    linear: Node
    path: tuple[tuple[Node, Dims], ...]
    digit: RowDigit
    slices: tuple[Node, ...]

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) of each part along the digit, in order."""
        return tuple(sorted({(node.args[2], _stop(node, self.digit.size)) for node in self.slices}))


def unfuse_split_linears(graph: LogicalGraph) -> LogicalGraph:
    """Split linears into their parts until none can be split.

    A weight with several uses is split if all its uses are split in the same way.
    """
    while True:
        graph = _merge_equal_views(graph)
        readers = consumers(graph)
        weights = {leaf.name: leaf for leaf in graph.parameters}
        forks = {}
        for node in graph.nodes:
            if node.op == "aten.linear.default" and all(ref.name in weights for ref in _leaves(node)):
                fork = _fork(graph, node, readers)
                if fork is not None:
                    forks[node.name] = fork
        chosen = _consistent_forks(forks, readers)
        if not chosen:
            return graph
        graph = _split_linears(graph, chosen)


def _merge_equal_views(graph: LogicalGraph) -> LogicalGraph:
    """Merge equal views of a linear's output, such as one view per part."""
    first: dict[object, Ref] = {}
    table: dict[Ref, Ref] = {}
    nodes = []
    views = {node.name for node in graph.nodes if node.op == "aten.linear.default"}
    for node in graph.nodes:
        source = substitute(node.args[0], table) if node.op in _VIEWS else None
        if isinstance(source, Ref) and source.name in views:
            key = (node.op, source, node.args[1:])
            if key in first:
                table[Ref(node.name)] = first[key]
                continue
            first[key] = Ref(node.name)
            views.add(node.name)
        nodes.append(node)
    return rebuild(graph, nodes, table) if table else graph


def _leaves(node: Node) -> list[Ref]:
    return [ref for ref in node.args[1:] if isinstance(ref, Ref)]


def _consistent_forks(forks: dict[str, SplitPoint], readers: dict[Ref, list[Node]]) -> dict[str, SplitPoint]:
    """Forks whose weights are split in the same way by all their readers."""
    chosen = dict(forks)
    while True:
        bad = [
            name
            for name, fork in chosen.items()
            for ref in _leaves(fork.linear)
            for reader in readers[ref]
            if reader.name not in chosen
            or (chosen[reader.name].digit, chosen[reader.name].parts) != (fork.digit, fork.parts)
        ]
        if not bad:
            return chosen
        for name in bad:
            chosen.pop(name, None)


def _fork(graph: LogicalGraph, linear: Node, readers: dict[Ref, list[Node]]) -> SplitPoint | None:
    """The fork of a linear if slices cover its output and no element is in two parts, else None."""
    value = linear
    rows = linear.outputs[0].shape[-1]
    assert isinstance(rows, int)
    dims: Dims = (*(None,) * (len(linear.outputs[0].shape) - 1), RowDigit(1, rows, 1))
    path: list[tuple[Node, Dims]] = []
    while True:
        after = readers.get(Ref(value.name), [])
        if len(after) != 1:
            break
        found = _view_digits(after[0], value.outputs[0].shape, dims)
        if found is None:
            break
        value, dims = after[0], found
        path.append((value, dims))
    if len(after) < 2 or graph.loss.name == value.name or any(node.op != "aten.slice.Tensor" for node in after):
        return None
    cut = {node.args[1] for node in after}
    digit = dims[cut.pop()] if len(cut) == 1 else None
    if digit is None or any(node.args[4] != 1 or not isinstance(node.args[2], int) for node in after):
        return None
    fork = SplitPoint(linear, tuple(path), digit, tuple(after))
    covered = 0
    for start, stop in fork.parts:
        if start != covered:
            return None
        covered = stop
    if covered != digit.size or len(fork.parts) < 2 or (digit.outer > 1 and _rejoin(fork, readers)):
        return None
    return fork


def _stop(node: Node, size: int) -> int:
    return size if node.args[3] is None else int(node.args[3])


def _view_digits(view: Node, before: Shape, dims: Dims) -> Dims | None:
    """The digits of a view's dims; None for other ops, and for views that mix digits with other dims."""
    if view.op == "aten.permute.default":
        return tuple(dims[at] for at in view.args[1])
    if view.op != "aten.reshape.default":
        return None
    found: list[RowDigit | None] = []
    for ins, outs in _groups(before, view.outputs[0].shape):
        digits = [dims[at] for at in ins if before[at] != 1]
        if not any(digits):
            found += [None] * len(outs)
            continue
        digit = digits[0]
        if len(digits) != 1 or digit is None:
            return None
        inner = digit.size * digit.inner
        for at in outs:
            size = view.outputs[0].shape[at]
            assert isinstance(size, int)
            inner //= size
            found.append(RowDigit(digit.outer * digit.size * digit.inner // (size * inner), size, inner))
    return tuple(found)


def _groups(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Smallest runs of dims with equal products on both sides; dims of size 1 join the run before them."""
    left, right = (
        [evaluate(dim, dict.fromkeys(symbols_of(dim), _PRIME)) for dim in shape] for shape in (before, after)
    )
    one = two = 0
    while one < len(left) or two < len(right):
        ins: list[int] = []
        outs: list[int] = []
        product_in = product_out = 1
        while not ins or not outs or product_in != product_out:
            if (product_in <= product_out and one < len(left)) or two == len(right):
                if one == len(left):
                    break
                product_in *= left[one]
                ins.append(one)
                one += 1
            else:
                product_out *= right[two]
                outs.append(two)
                two += 1
        while one < len(left) and left[one] == 1:
            ins.append(one)
            one += 1
        while two < len(right) and right[two] == 1:
            outs.append(two)
            two += 1
        yield ins, outs


def _rejoin(fork: SplitPoint, readers: dict[Ref, list[Node]]) -> bool:
    """Whether element-wise ops and views alone lead two parts into one tensor, as in partial rotary embedding.

    There the parts belong to one head, and splitting would only make the products smaller.
    """
    reached: dict[str, tuple[int, int]] = {}
    for node in fork.slices:
        part = (node.args[2], _stop(node, fork.digit.size))
        near = [Ref(node.name)]
        while near:
            for reader in readers.get(near.pop(), ()):
                if reader.op not in _SAME_PLACE or reached.get(reader.name) == part:
                    continue
                if reader.op == "aten.cat.default" and reader.name in reached:
                    return True
                reached[reader.name] = part
                near.append(Ref(reader.name))
    return False


def _split_linears(graph: LogicalGraph, forks: dict[str, SplitPoint]) -> LogicalGraph:
    metas = dict(graph.metas)
    weights = {leaf.name: leaf for leaf in graph.parameters}
    parameters = dict(weights)
    table: dict[Ref, Ref] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        fork = forks.get(node.name)
        if fork is None:
            nodes.append(node)
            continue
        build = NodeBuilder(metas, node)
        for index, (start, stop) in enumerate(fork.parts):
            leaves = [_rows(weights[ref.name], index, fork.digit, start, stop) for ref in _leaves(node)]
            parameters.update((leaf.name, leaf) for leaf in leaves)
            made = _part(build, fork, [Ref(leaf.name) for leaf in leaves], stop - start)
            for cut in fork.slices:
                if cut.args[2] == start:
                    table[Ref(cut.name)] = made
        for ref in _leaves(node):
            parameters.pop(ref.name, None)
        nodes += build.nodes
    gone = {cut.name for fork in forks.values() for cut in fork.slices}
    gone |= {view.name for fork in forks.values() for view, _ in fork.path}
    kept = [node for node in nodes if node.name not in gone]
    return replace(rebuild(graph, kept, table), parameters=tuple(parameters.values()))


def _part(build: NodeBuilder, fork: SplitPoint, leaves: list[Ref], size: int) -> Ref:
    """Build the linear of one part and the views of the fork's path, with the part's sizes."""
    linear, digit = fork.linear, fork.digit
    out = linear.outputs[0]
    shape: Shape = (*out.shape[:-1], digit.outer * size * digit.inner)
    made = build.op("linear.default", linear.args[0], *leaves, shape=shape, dtype=out.dtype)
    for view, dims in fork.path:
        if view.op == "aten.permute.default":
            made = build.permute(made, view.args[1])
            continue
        shape = tuple(
            given if each is None else _dim_size_after_cut(each, digit, size)
            for given, each in zip(view.outputs[0].shape, dims, strict=True)
        )
        made = build.op("reshape.default", made, sizes(shape), shape=shape, dtype=out.dtype)
    return made


def _dim_size_after_cut(each: RowDigit, cut: RowDigit, size: int) -> int:
    """The size of a dim after cutting the digit ``cut``, which the dim may contain, to ``size``."""
    holds = each.inner <= cut.inner and each.outer <= cut.outer and each.size > 1
    return each.size // cut.size * size if holds else each.size


def _rows(leaf: Parameter, index: int, digit: RowDigit, start: int, stop: int) -> Parameter:
    """The rows of ``leaf`` whose ``digit`` is from ``start`` to ``stop``."""
    first, last = start * digit.inner, stop * digit.inner
    meta = TensorMeta((digit.outer * (last - first), *leaf.meta.sizes[1:]), leaf.meta.dtype)
    step = ("slice", 0, first, last) if digit.outer == 1 else ("blocks", 0, digit.outer, first, last)
    return replace(leaf, name=f"{leaf.name}.{index}", meta=meta, transforms=(*leaf.transforms, step))
