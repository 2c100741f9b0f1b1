"""``docs/reference/configuration.md``: every setting of the service, from ``autosbp.service.settings``, and other variables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosbp.service.settings import Settings
from tests.docs_pages.markdown import heading, plain, table

INTRODUCTION = """The service, its workers and `--launcher slurm|ray|kubernetes` read their settings from environment variables.
Every setting has a default that works on a laptop. Options of `autosbp serve` and `autosbp work` override the environment.
Lists and maps are JSON, such as `["--partition=gpu"]`. Bytes are plain numbers; `_s` means seconds.
"""
GROUPS: Mapping[str, Sequence[str]] = {
    "Address and storage": (
        "host", "port", "root_path", "trusted_proxies", "data_dir", "database_url", "lock_timeout_s", "min_free_bytes",
        "artifacts", "files_days", "files_bytes", "threads", "access_log", "otel",
    ),
    "Callers, tenants and the audit log": (
        "require_keys", "operator_tenant", "rate_limit_per_s", "rate_limit_burst", "wrong_keys_burst",
        "idempotency_ttl_s", "audit_days", "audit_strangers",
    ),
    "Limits of requests and documents": (
        "max_body_bytes", "body_budget_bytes", "max_depth", "max_values", "max_ops", "max_connections",
        "max_connections_of_address", "max_streams", "max_streams_of_tenant", "max_time_limit_s",
        "documents_bytes_of_tenant", "files_bytes_of_tenant", "job_files_bytes",
    ),
    "Jobs and workers": (
        "worker", "plan_jobs", "measure_jobs", "measure_alone", "worker_lease_s", "job_memory_bytes", "job_cpu_s",
        "job_timeout_s", "max_attempts", "cancel_grace_s", "max_queued_jobs", "max_queued_jobs_of_tenant",
        "max_queued_s", "max_queued_s_of_tenant", "max_running_jobs_of_tenant", "tenant_weights", "trial_timeout_s",
        "calibration_timeout_s",
    ),
    "Ranks and their sandbox": (
        "sandbox", "rank_user", "rank_memory_bytes", "rank_file_bytes", "rank_variables", "log_bytes",
    ),
    "Launchers": (
        "launcher", "launcher_dir", "launcher_python", "launcher_interface", "queue_timeout_s", "slurm_options",
        "ray_url", "kubernetes_url", "kubernetes_namespace", "kubernetes_image", "kubernetes_claim", "kubernetes_mount",
        "kubernetes_memory", "kubernetes_account_dir",
    ),
    "For tests": ("testing", "crash_at"),
}  # fmt: skip
OTHERS = (
    ("AUTOSBP_API_KEY", "The API key that the command line and `Client` send to a service."),
    ("NCCL_TESTS_HOME", "Where `autosbp calibrate --nccl-tests` finds the programs of nccl-tests."),
    ("NCCL_TESTS_SPLIT", "Set for nccl-tests that were built with MPI: all groups of one shape run at once."),
    ("OTEL_*", "Where traces go, with `AUTOSBP_OTEL=1`; OpenTelemetry's own variables."),
    ("AWS_*", "Credentials of an object store that `AUTOSBP_ARTIFACTS` names."),
    ("RAY_AUTH_TOKEN", "Token for the dashboard of a Ray cluster."),
    ("XDG_CACHE_HOME", "`$XDG_CACHE_HOME/autosbp/discovery` keeps layouts found for ops without a rule."),
)


def configuration_page() -> str:
    """The whole page; a setting that no group names is an error."""
    fields = Settings.model_fields
    missing = set(fields) ^ {name for names in GROUPS.values() for name in names}
    assert not missing, f"tests/docs_pages/configuration.py: {sorted(missing)}"
    parts = [heading("Configuration", "`service/settings.py`", INTRODUCTION)]
    for title, names in GROUPS.items():
        rows = [
            [f"`AUTOSBP_{name.upper()}`", _default(fields[name]), plain(fields[name].description or "")]
            for name in names
        ]
        parts.append(f"## {title}\n\n{table(['setting', 'default', 'meaning'], rows)}")
    rows = [[f"`{name}`", meaning] for name, meaning in OTHERS]
    parts.append(f"## Other variables\n\n{table(['variable', 'meaning'], rows)}")
    return "\n".join(parts)


def _default(field: Any) -> str:
    value = field.default
    if value is None or value == "":
        return ""
    if isinstance(value, Path):
        return f"`{value}`"
    if isinstance(value, bool):
        return "`1`" if value else "`0`"
    if isinstance(value, float):
        return f"`{value:g}`" if value < 1e6 else f"`{value:.0f}`"
    if isinstance(value, int):
        return f"`{value}`{_binary(value)}"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _binary(value: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if value >= 2**power and value % 2**power == 0:
            return f" ({value >> power} {unit})"
    return ""
