"""Confinement of processes that run untrusted code: ``Sandbox``."""

from autosbp.sandbox.confinement import (
    Sandbox,
    bubblewrap_unavailable_reason,
    group_of,
    limits_unavailable_reason,
    oom_first_command,
)

__all__ = ["Sandbox", "group_of", "oom_first_command", "bubblewrap_unavailable_reason", "limits_unavailable_reason"]
