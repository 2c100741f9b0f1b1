"""Ops that a calibration should time for a model on a cluster: every distinct local shape of a possible plan."""

from __future__ import annotations

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import in_precision
from autosbp.sbp.rules import sharding_of
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.domains import UnaryCosts, make_domain
from autosbp.search.problem.mesh_views import mesh_views
from autosbp.search.problem.op_clusters import form_clusters

MAX_KEYS = 2000
TIMED = frozenset(("aten", "autosbp"))
"""Namespaces of ops that every machine has. Ops of users' libraries take their roofline time."""


def op_keys(graph: LogicalGraph, cluster: Cluster, options: PlanOptions) -> list[str]:
    """Keys of the ops to time (``costmodel.compute.op_key``), most informative first, at most ``MAX_KEYS``.

    The order is the heaviest op of each kind, then all others, both heaviest first. An untimed op is predicted from
    timed ops of its kind, or, if there are none, from others that may be far from it. Copies and the optimizer are
    predicted from additions. Shapes are those of the requested microbatch, else of the whole global batch.
    """
    graph = in_precision(graph, options.on(cluster).precision)
    batch = options.micro_batch or options.global_batch or 8 * cluster.num_devices
    bound = graph.bind(**dict.fromkeys(graph.symbols, batch))
    weights: dict[str, float] = {}
    kinds: dict[str, str] = {}
    network, compute = NetworkModel(cluster), ComputeModel(cluster.device)
    seen = set()
    for view in mesh_views(cluster.mesh()):
        unary = UnaryCosts(bound, compute, BoxingModel(network, view), options.optimizer, 1)
        for op_cluster in form_clusters(bound, view.split_counts):
            if (view, op_cluster.key) in seen:
                continue
            seen.add((view, op_cluster.key))
            domain = make_domain(op_cluster, view)
            for at, node in enumerate(op_cluster.nodes):
                sharding = sharding_of(bound, node)
                if sharding.free or node.op.partition(".")[0] not in TIMED:
                    continue
                size = sharding.flops + sum(meta.num_bytes for meta in node.outputs)
                for key in unary.op_keys(domain, node, at):
                    weights[key] = max(weights.get(key, 0.0), size)
                    kinds[key] = node.op
    weights.pop("", None)
    heaviest_first = sorted(weights, key=lambda key: (-weights[key], key))
    firsts = set({kinds[key]: key for key in reversed(heaviest_first)}.values())
    return sorted(heaviest_first, key=lambda key: key not in firsts)[:MAX_KEYS]
