"""``docs/reference/file-schemas.md``: the files that people write and keep, from the JSON Schemas that the package ships."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from tests.docs_pages.markdown import heading, plain, table

INTRODUCTION = """All files are strict JSON (cluster files may also be YAML): unknown members, two members of one name and
values out of range are refused, with the field, the value and the limit. The member `schema` names the format and its version.
None holds code, and none holds weights.

| file | `schema` | written by | read by |
| --- | --- | --- | --- |
| graph | `autosbp.graph/1` | `autosbp capture` | `plan`, `calibrate`, `explain`, `trial`, `export` |
| cluster | `autosbp.cluster/1` | you, or `autosbp clusters PRESET --json` | `--cluster` |
| calibration | `autosbp.calibration/1` | `autosbp calibrate`, `autosbp learn` | `--calibration` |
| plan | `autosbp.plan/2` | `autosbp plan`, `autosbp tune` | `explain`, `diff`, `trial`, `export`, `--start` |
| trials | `autosbp.trials/1` | `autosbp tune --workdir DIR` | `autosbp tune --workdir DIR` |

Plans of the earlier format `autosbp.plan/1` are still read. The JSON Schemas of the first three are files of the package
(`autosbp/data/*.schema.json`). The readers check more than a schema can say; the descriptions below name these checks.
"""
PLAN = """## Plan

| member | meaning |
| --- | --- |
| `plan_id` | `plan-` and a hash of the document |
| `model`, `cluster`, `options` | the request: the model's name, the whole cluster, every option |
| `step_time_s` | the predicted step: simulated, with communication hidden behind computation where the executor hides it |
| `breakdown` | parts of the step: `compute_s`, `exposed_comm_s`, `exposed_comm_by_purpose_s`, `bubble_s`, `optimizer_s`; beside the step `hidden_comm_s` |
| `precision` | [training precision](../how-to/choose-a-precision.md); absent for the dtypes of the graph as captured |
| `strategy_summary` | the strategy in words: degrees, storage, stages, precision, and what is split otherwise |
| `trainer`, `nearest_to` | of plans for another trainer: its name, and the plan that it stands for, with the loss |
| `samples_per_s`, `sequence_length`, `tokens_per_s`, `mfu` | throughput and utilisation ([cost model](../concepts/cost-model.md#throughput-utilisation-price)); tokens are null for models without a sequence |
| `hours_per_billion_tokens`, `price_per_billion_tokens` | hours of the cluster and US dollars for 10^9 tokens; the price is null unless the cluster states `price_per_device_hour` |
| `comm_bytes_per_device` | bytes that one device sends in a step |
| `memory_bytes_per_device`, `memory_breakdown`, `memory_limit_bytes` | peak memory of the fullest device, its parts, and the limit for tensors |
| `memory_reserve` | with the default limit: what it leaves of a device for `context`, `nccl` and `fragmentation` |
| `fewer_devices` | where fewer devices are as fast: how many, and their step time |
| `lower_bound_s`, `gap` | no strategy of the search space takes less than the bound; `gap` is (step - bound) / step |
| `searcher`, `evaluations` | which searcher found it, and how many strategies were evaluated |
| `strategy` | everything that search decides: `mesh`, `signatures` (layouts of every op), `parameters` (how each is stored), `paths` (boxing), batch sizes, `bucket_bytes`, `pipeline`, `sync` ([synchronizers](../concepts/synchronizers.md#in-a-plan)) |
| `baselines`, `baseline_strategies` | costs and strategies of what users would otherwise choose |
| `warnings` | what to know before you rely on the plan |
| `provenance` | hashes of graph and cluster, calibration, searcher, seed, version |
"""
SCHEMAS = {"Graph": "graph", "Cluster": "cluster", "Calibration": "calibration"}


def file_schemas_page() -> str:
    """The whole page."""
    parts = [heading("Files", "the JSON Schemas in `autosbp/data`", INTRODUCTION)]
    for title, name in SCHEMAS.items():
        schema = json.loads((files("autosbp") / "data" / f"{name}.schema.json").read_text())
        parts.append(f"## {title}\n\n{plain(schema['description'])}\n\n{_members(schema)}")
        for part, each in schema.get("$defs", {}).items():
            if "properties" in each:
                note = f"{plain(each['description'])}\n\n" if "description" in each else ""
                parts.append(f"### {title.lower()}: {part}\n\n{note}{_members(each)}")
    return "\n".join([*parts, PLAN])


def _members(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        [f"`{name}`" + (" (required)" if name in required else ""), _type(each), plain(each.get("description", ""))]
        for name, each in schema["properties"].items()
    ]
    return table(["member", "type", "meaning"], rows)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{str(schema['$ref']).rpartition('/')[2]}`"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(each) for each in options))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
