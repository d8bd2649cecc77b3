"""The wheel holds all the package needs, works from where it is installed, and is small enough for a registry."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.helpers.datasets import write_labelled

ROOT = Path(__file__).parents[1]
REGISTRY_LIMIT = 100 * 10**6  # bytes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    here = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    pip("wheel", "--no-deps", *here, "--wheel-dir", folder, ROOT)
    [path] = folder.glob("headstart-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with nothing but the installed wheel in it."""
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--target", folder, wheel)
    return folder


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def from_wheel(installed, tmp_path, *command):
    """Standard output of `command` in an empty folder, with the installed wheel in front of all other packages."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_fits_into_a_package_registry(wheel):
    assert wheel.stat().st_size < REGISTRY_LIMIT


def test_the_wheel_holds_every_file_of_the_package(wheel):
    source = ROOT / "src"
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name and name.startswith("headstart/")}
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())


def test_an_installed_wheel_is_imported_from_where_it_is(installed, tmp_path):
    out = from_wheel(installed, tmp_path, "-c", "import headstart; print(headstart.__file__)")
    assert Path(out.strip()).is_relative_to(installed)


def test_the_command_of_an_installed_wheel_shows_its_help(installed, tmp_path):
    out = from_wheel(installed, tmp_path, installed / "bin" / "headstart", "--help")
    assert "finetune" in out


def test_an_installed_wheel_lists_the_models_that_come_with_it(installed, tmp_path):
    out = from_wheel(installed, tmp_path, "-m", "headstart", "models")
    assert all(name in out for name in ("en-tiny", "fr-small", "en-de-captions"))


def test_an_installed_wheel_finds_its_presets_and_devices(installed, tmp_path):
    out = from_wheel(installed, tmp_path, "-m", "headstart", "plan", "--preset", "tiny", "--gpu", "H200")
    assert "H200" in out


def test_an_installed_wheel_classifies_with_a_model_and_renders_a_report(installed, tmp_path):
    write_labelled(tmp_path / "reviews.tsv", 40)
    options = ("--steps", "1", "--out", "run")
    from_wheel(installed, tmp_path, "-m", "headstart", "finetune", "en-tiny", "reviews.tsv", *options)
    assert "<html" in (tmp_path / "run" / "report.html").read_text("utf-8")
