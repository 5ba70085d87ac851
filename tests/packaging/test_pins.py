"""The pinned requirements: complete, hashed, and without a word about where they came from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CI = ROOT / ".ci"

FILES = sorted(path.stem.removeprefix("requirements-") for path in CI.glob("requirements-*.in"))


def names(lines: list[str]) -> set[str]:
    """The distributions named at the start of lines, as the index spells them."""
    found = (re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line) for line in lines)
    return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}


def pinned(name: str) -> dict[str, str]:
    text = (CI / f"requirements-{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", text, flags=re.MULTILINE))


def test_every_runtime_dependency_is_pinned():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = names(dependencies) - {"statesvc-client"}
    assert wanted <= names((CI / "requirements-run.in").read_text().splitlines())
    assert wanted <= pinned("run").keys()


def test_development_uses_the_versions_that_run():
    assert pinned("run").items() <= pinned("dev").items()


def test_everything_that_is_asked_for_is_pinned_and_nothing_else():
    assert {"run", "dev", "audit"} <= set(FILES)
    assert {path.name for path in CI.glob("requirements-*.txt")} == {f"requirements-{name}.txt" for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_every_pin_has_a_hash_and_names_no_address_and_no_path(name):
    lines = (CI / f"requirements-{name}.txt").read_text().splitlines()
    code = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    shapes = re.compile(r"[a-z0-9-]+==\S+ \\|--hash=sha256:[0-9a-f]{64}( \\)?")
    assert [line for line in code if not shapes.fullmatch(line)] == []
    assert [line for line in lines if "://" in line or re.search(r"(^|\s)/", line)] == []
    blocks = re.findall(r"==\S+ \\\n +--hash", "\n".join(lines))
    assert len(blocks) == len(pinned(name)) > 0
