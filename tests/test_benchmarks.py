"""The scripts in benchmarks/ and recipes/ import only what the package has."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "recipes").glob("*.py")])


def package_imports(script: Path) -> list[tuple[str, str]]:
    """Module and name of everything that a script imports from the package, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "headstart":
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "headstart"]
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_import_of_a_script_resolves(script):
    for module, name in package_imports(script):
        imported = importlib.import_module(module)
        if name and not hasattr(imported, name):
            importlib.import_module(f"{module}.{name}")
