"""Format numbers with their units for display."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    """``12.3 ms``; a dash for None."""
    if value is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def num_bytes(value: float | None) -> str:
    """``3.2 GiB``; a dash for None."""
    if value is None:
        return "-"
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"


def count(value: float) -> str:
    """``1.24 G``, followed by a unit."""
    for scale, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} "


def percent(part: float, whole: float) -> str:
    """Share of a whole in per cent; a dash if the whole is 0."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
