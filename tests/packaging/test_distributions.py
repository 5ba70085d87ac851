"""Two distributions with one version; the client brings msgspec and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from statesvc_client import __version__

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client"


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(source: Path, target: Path, *options: str) -> Path:
    run(sys.executable, "-m", "pip", "wheel", source, "--no-deps", "--wheel-dir", target, *options)
    [wheel] = target.glob("*.whl")
    return wheel


def clone(folder: Path, target: Path) -> Path:
    """The folder as a clone has it: without what tools leave behind, away from the rest of the tree."""
    left_behind = shutil.ignore_patterns(".*", "var", "dist", "build", "__pycache__")
    return Path(shutil.copytree(folder, target, ignore=left_behind))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ ;\[]", line, maxsplit=1)[0].lower() for line in requirements}


def test_the_version_is_written_in_one_place_and_the_daemon_asks_for_that_very_client():
    assert "version" not in project(ROOT)
    assert "version" not in project(CLIENT)
    assert f"statesvc-client=={__version__}" in project(ROOT)["dependencies"]


def test_the_client_depends_on_msgspec_alone():
    assert names(project(CLIENT)["dependencies"]) == {"msgspec"}


def test_both_distributions_carry_the_licence():
    assert (CLIENT / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert {project(folder)["license"] for folder in (ROOT, CLIENT)} == {"Apache-2.0"}


@pytest.mark.slow
def test_the_client_wheel_alone_brings_msgspec_and_nothing_else(tmp_path):
    wheel = build_wheel(clone(CLIENT, tmp_path / "client"), tmp_path / "wheels")
    assert wheel.name == f"statesvc_client-{__version__}-py3-none-any.whl"
    assert "statesvc_client/py.typed" in zipfile.ZipFile(wheel).namelist()

    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", wheel)
    listed = run(sys.executable, "-m", "pip", "--python", python, "list", "--format=freeze")
    assert names(listed.split()) == {"msgspec", "statesvc-client"}

    imported = run(
        python,
        "-I",
        "-c",
        "import statesvc_client as c; print(c.__file__, c.__version__)",
    )
    assert str(tmp_path / "empty") in imported
    assert imported.split()[1] == __version__


@pytest.mark.slow
def test_the_daemon_wheel_holds_its_sql_its_configuration_and_its_units(tmp_path):
    # Without isolation: the build tools are installed here, and the client's test has shown the other way.
    wheel = build_wheel(clone(ROOT, tmp_path / "statesvc"), tmp_path / "wheels", "--no-build-isolation")
    assert wheel.name == f"statesvc-{__version__}-py3-none-any.whl"
    held = set(zipfile.ZipFile(wheel).namelist())
    shared = f"statesvc-{__version__}.data/data/share/statesvc"
    assert {f"{shared}/statesvc.yml", f"{shared}/systemd/statesvc.service"} <= held
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "statesvc").rglob("*.sql")}
    assert sources <= held
    assert not [name for name in held if name.startswith(("statesvc_client/", "tests/"))]
