"""Imports point down only, and light doors stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headstart"

# Each line may import from the lines below it; names on one line do not know each other.
LAYERS = [
    ["cli"],
    ["serving"],
    ["workflows"],
    ["inference", "planning"],
    ["training", "generation", "baselines", "convert"],
    ["reports"],
    ["plots"],
    ["evaluation"],
    ["quantization"],
    ["fast"],
    ["objectives", "checkpoint"],
    ["data", "models"],
    ["batch"],
    ["results"],
    ["config", "presets"],
    ["constants"],
    ["pretrained"],
    ["atomic_io"],
    ["errors"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def room(module: str) -> str:
    return module.split(".")[1] if module.startswith("headstart.") else ""


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "headstart":
                yield from (f"headstart.{alias.name}" for alias in node.names)
            yield node.module


def files():
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.parent != SOURCE or path.stem in RANK]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down_only(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in RANK, f"{own} stands on no line of the map"
    for module in imports(path):
        if module in (
            "headstart.fast",
            "headstart.fast.linear_cross_entropy",
        ):  # the switch, and a function without modules
            continue
        other = room(module)
        if other and other != own:
            assert other in RANK, f"{module} stands on no line of the map"
            assert RANK[other] > RANK[own], f"{own} imports {module}"


def test_only_three_files_use_torch_distributed():
    three = [SOURCE / "training" / f"{name}.py" for name in ("launch", "distributed", "parallel")]
    for path in SOURCE.rglob("*.py"):
        if path not in three:
            assert not [name for name in imports(path) if name.startswith("torch.distributed")], path


def test_weights_are_never_unpickled():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        assert "torch.load" not in text
        assert "import pickle" not in text
        assert "allow_pickle=True" not in text


@pytest.mark.parametrize(
    "code",
    [
        "import headstart",
        "import headstart.config, headstart.errors, headstart.results",
        "import headstart.cli.app",
        "import headstart.serving.batcher, headstart.serving.schema",
        "from headstart.cli.app import app; from typer.testing import CliRunner; CliRunner().invoke(app, ['--help'])",
        "from headstart.cli.app import app; from typer.testing import CliRunner; "
        "[CliRunner().invoke(app, [name, '--help']) for name in ('demo', 'pretrain', 'finetune', 'compare', 'audit', 'export', 'import')]",
    ],
)
def test_light_doors_load_without_torch(code):
    heavy = "torch", "sklearn", "matplotlib", "pandas", "scipy", "transformers", "onnxruntime"
    check = f"{code}; import sys; found = [name for name in {heavy} if name in sys.modules]; assert not found, found"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_prediction_does_not_wait_for_what_it_does_not_use():
    heavy = ["matplotlib", "torch.distributed.fsdp", "sacrebleu", "sklearn", "scipy", "onnxruntime", "transformers"]
    code = "import headstart.inference.classify, sys"
    check = f"{code}; found = [name for name in {heavy} if name in sys.modules]; assert not found, found"
    subprocess.run([sys.executable, "-c", check], check=True)
