"""A classification head as import makes it: features, logits of many classes, cross-entropy with ignored labels."""

from __future__ import annotations

from autosbp.graph.ir import Input, LogicalGraph, Node, Parameter, Ref, TensorMeta
from autosbp.graph.passes._losses import explicit_cross_entropy


def classification(classes: int, width: int, *, ignore: int, dtype: str = "float32") -> LogicalGraph:
    """``cross_entropy(x U V)`` of ``classes`` classes; the label ``ignore`` does not count."""

    def meta(*shape: int | str) -> TensorMeta:
        return TensorMeta(shape, dtype)

    nodes = (
        Node("features", "aten.linear.default", (Ref("x"), Ref("u")), {}, (meta("batch", width),)),
        Node("logits", "aten.linear.default", (Ref("features"), Ref("v")), {}, (meta("batch", classes),)),
        Node("loss", "aten.cross_entropy_loss.default", (Ref("logits"), Ref("labels"), None, 1, ignore), {}, (meta(),)),
    )
    graph = LogicalGraph(
        "classification",
        {"batch": 8},
        (Parameter("u", meta(width, width), "u"), Parameter("v", meta(classes, width), "v")),
        (Input("x", meta("batch", width)), Input("labels", TensorMeta(("batch",), "int64"), classes)),
        (),
        nodes,
        Ref("loss"),
    )
    return explicit_cross_entropy(graph)
