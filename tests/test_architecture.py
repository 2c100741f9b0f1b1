"""The arrows between the rooms: who may import whom, and what importing must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "autosbp/graph": (
        "autosbp.discovery",
        "autosbp.sbp",
        "autosbp.costmodel",
        "autosbp.search",
        "autosbp.executor",
        "autosbp.eager",
        "service",
        "calibration",
    ),
    "autosbp/sbp": (
        "autosbp.discovery",
        "autosbp.costmodel",
        "autosbp.search",
        "autosbp.executor",
        "autosbp.eager",
        "service",
        "calibration",
    ),
    "autosbp/discovery": (
        "autosbp.costmodel",
        "autosbp.search",
        "autosbp.executor",
        "autosbp.eager",
        "service",
        "calibration",
    ),
    "autosbp/costmodel": (
        "autosbp.discovery",
        "autosbp.search",
        "autosbp.executor",
        "autosbp.eager",
        "service",
        "calibration",
    ),
    "autosbp/search": ("autosbp.discovery", "autosbp.executor", "autosbp.eager", "service", "calibration"),
    "autosbp/search/searchers": (
        "autosbp.graph",
        "autosbp.sbp",
        "autosbp.costmodel",
        *(f"autosbp.search.{each}" for each in ("checker", "problem", "stages", "bounds", "space", "planner")),
    ),
    "autosbp/search/problem": tuple(
        f"autosbp.search.{each}" for each in ("searchers", "checker", "stages", "bounds", "space", "planner")
    ),
    "autosbp/search/stages": tuple(
        f"autosbp.search.{each}" for each in ("searchers", "checker", "bounds", "space", "plan_options", "planner")
    ),
    "autosbp/search/bounds": tuple(
        f"autosbp.search.{each}" for each in ("checker", "space", "plan_options", "planner")
    ),
    "autosbp/search/space": tuple(f"autosbp.search.{each}" for each in ("checker", "planner")),
    "autosbp/executor": ("autosbp.discovery", "autosbp.search", "autosbp.eager", "service", "calibration"),
    "autosbp/eager": ("autosbp.discovery", "autosbp.search", "service", "calibration"),
    "autosbp/export": ("service", "calibration"),
    "calibration": ("autosbp.search", "autosbp.executor", "service"),
}


def imports(path: Path) -> set[str]:
    """Modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("room", FORBIDDEN)
def test_imports_point_one_way(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        for name in imports(path):
            for forbidden in FORBIDDEN[room]:
                assert name != forbidden and not name.startswith(forbidden + "."), f"{path.relative_to(ROOT)}: {name}"


def test_only_the_command_line_knows_the_service_and_the_calibration_package() -> None:
    for path in sorted((ROOT / "autosbp").rglob("*.py")):
        if "cli" not in path.relative_to(ROOT / "autosbp").parts:
            assert not {name.split(".")[0] for name in imports(path)} & {"service", "calibration"}, path


@pytest.mark.parametrize(
    "module", ["autosbp", "autosbp.api", "autosbp.cli", "autosbp.client", "service.app", "calibration"]
)
def test_importing_does_not_load_torch(module: str) -> None:
    program = f"import sys, {module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_is_pickled() -> None:
    for path in sorted(path for room in ("autosbp", "service", "calibration") for path in (ROOT / room).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        assert not imports(path) & {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}, name
        nodes = list(ast.walk(ast.parse(path.read_text())))
        calls = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        calls |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        pickled = {"all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list"}
        assert not calls & (pickled | {"send_object_list", "recv_object_list"}), name
