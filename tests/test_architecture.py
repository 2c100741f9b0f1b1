"""The arrows between the rooms: who may import whom, and what importing must not load."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "autosbp/graph": (
        "autosbp.discovery",
        "autosbp.sbp",
        "autosbp.costmodel",
        "autosbp.search",
        "autosbp.executor",
        "autosbp.eager",
        "autosbp.service",
        "autosbp.calibration",
    ),
    "autosbp/sbp": (
        "autosbp.discovery",
        "autosbp.costmodel",
        "autosbp.search",
        "autosbp.executor",
        "autosbp.eager",
        "autosbp.service",
        "autosbp.calibration",
    ),
    "autosbp/discovery": (
        "autosbp.costmodel",
        "autosbp.search",
        "autosbp.executor",
        "autosbp.eager",
        "autosbp.service",
        "autosbp.calibration",
    ),
    "autosbp/costmodel": (
        "autosbp.discovery",
        "autosbp.search",
        "autosbp.executor",
        "autosbp.eager",
        "autosbp.service",
        "autosbp.calibration",
    ),
    "autosbp/search": (
        "autosbp.discovery",
        "autosbp.executor",
        "autosbp.eager",
        "autosbp.service",
        "autosbp.calibration",
    ),
    "autosbp/search/solvers": (
        "autosbp.graph",
        "autosbp.sbp",
        "autosbp.costmodel",
        *(
            f"autosbp.search.{each}"
            for each in ("checker", "problem", "stages", "bounds", "branch_and_bound", "planner")
        ),
    ),
    "autosbp/search/problem": tuple(
        f"autosbp.search.{each}" for each in ("solvers", "checker", "stages", "bounds", "branch_and_bound", "planner")
    ),
    "autosbp/search/stages": tuple(
        f"autosbp.search.{each}"
        for each in ("solvers", "checker", "bounds", "branch_and_bound", "plan_options", "planner")
    ),
    "autosbp/search/bounds": tuple(
        f"autosbp.search.{each}" for each in ("checker", "branch_and_bound", "plan_options", "planner")
    ),
    "autosbp/search/branch_and_bound": tuple(f"autosbp.search.{each}" for each in ("checker", "planner")),
    "autosbp/executor": (
        "autosbp.discovery",
        "autosbp.search",
        "autosbp.eager",
        "autosbp.service",
        "autosbp.calibration",
    ),
    "autosbp/eager": ("autosbp.discovery", "autosbp.search", "autosbp.service", "autosbp.calibration"),
    "autosbp/tuning": ("autosbp.discovery", "autosbp.eager", "autosbp.service", "autosbp.calibration"),
    "autosbp/export": ("autosbp.service", "autosbp.calibration"),
    "calibration": ("autosbp.search", "autosbp.executor", "autosbp.service"),
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


def module_imports() -> dict[str, set[str]]:
    """For each module, the modules of this project that it imports, wherever in the file."""
    paths = [path for room in ("autosbp", "service", "calibration") for path in (ROOT / room).rglob("*.py")]
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    modules = {path: name if name.startswith("autosbp") else f"autosbp.{name}" for path, name in names.items()}
    known = {*modules.values()} - {"autosbp"}
    found: dict[str, set[str]] = {}
    for path, module in modules.items():
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        pairs = [(node.module or "", f"{node.module}.{alias.name}") for node in nodes for alias in node.names]
        found[module] = {inner if inner in known else outer for outer, inner in pairs} & known - {module}
    return found


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_no_modules_and_no_packages_import_each_other_in_a_circle() -> None:
    modules = module_imports()
    assert len(modules) > 600 and modules["autosbp.api"] >= {"autosbp.search.planner", "autosbp.graph_sources"}
    graphlib.TopologicalSorter(modules).prepare()  # raises ``CycleError`` with the circle
    packages: dict[str, set[str]] = {}
    for module, names in modules.items():
        packages.setdefault(package_of(module), set()).update(map(package_of, names))
    graphlib.TopologicalSorter({name: found - {name} for name, found in packages.items()}).prepare()


def test_only_the_command_line_knows_the_service_and_the_calibration_package() -> None:
    for path in sorted((ROOT / "autosbp").rglob("*.py")):
        if "cli" not in path.relative_to(ROOT / "autosbp").parts:
            assert not any(name.startswith(("autosbp.service", "autosbp.calibration")) for name in imports(path)), path


@pytest.mark.parametrize(
    "module", ["autosbp", "autosbp.api", "autosbp.cli", "autosbp.client", "autosbp.service.app", "autosbp.calibration"]
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
