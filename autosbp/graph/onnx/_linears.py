"""Fuse ``MatMul`` by a weight, and the ``Add`` of a bias after it, into one linear layer.

Both of torch's exporters write ``torch.nn.Linear`` on more than two dims in this form. The weight is stored transposed,
as the layer stores it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autosbp.graph.onnx._skeleton import OnnxNode, OnnxTensor, Skeleton


def fuse_linears(skeleton: Skeleton) -> Skeleton:
    """The skeleton with these products replaced by ``Linear`` nodes."""
    reads = Counter(name for node in skeleton.nodes for name in node.inputs) + Counter(skeleton.outputs)
    tensors = {one.name: one for one in skeleton.tensors}
    products = {
        node.outputs[0]: node
        for node in skeleton.nodes
        if (node.op == "MatMul" and len(node.inputs) == 2 and _is_weight(tensors.get(node.inputs[1]), 2))
        and reads[node.inputs[1]] == 1
    }
    biased: dict[str, OnnxNode] = {}
    nodes: list[OnnxNode] = []
    for node in skeleton.nodes:
        product, bias = _sum(node, products, tensors)
        if product is None or reads[product.outputs[0]] != 1:
            nodes.append(node)
            continue
        biased[product.outputs[0]] = node
        nodes.append(replace(node, op="Linear", inputs=(*product.inputs, bias), attributes={}))
    for weight in (node.inputs[1] for node in products.values()):
        one = tensors[weight]
        tensors[weight] = replace(one, shape=one.shape[::-1], transposed=True)
    kept = [node for node in nodes if not (node.outputs and node.outputs[0] in biased)]
    final = [replace(node, op="Linear") if node.outputs[0] in products else node for node in kept if node.outputs]
    return replace(skeleton, tensors=tuple(tensors.values()), nodes=tuple(final))


def _sum(node: OnnxNode, products: dict[str, OnnxNode], tensors: dict[str, OnnxTensor]) -> tuple[OnnxNode | None, str]:
    """The product and the bias that a node adds; (None, "") for other nodes."""
    if node.op != "Add" or len(node.inputs) != 2:
        return None, ""
    for product, bias in (node.inputs, node.inputs[::-1]):
        found = products.get(product)
        if found is None or not _is_weight(tensors.get(bias), 1):
            continue
        if tensors[bias].shape[0] == tensors[found.inputs[1]].shape[1]:
            return found, bias
    return None, ""


def _is_weight(tensor: OnnxTensor | None, ndim: int) -> bool:
    return tensor is not None and tensor.data is None and len(tensor.shape) == ndim
