"""The audit's verdict: not knowing is not a pass, and each case has an exit code of its own."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_pip_audit(folder: Path, stdout: str, stderr: str = "", code: int = 0) -> str:
    """A program that says what pip-audit would."""
    (folder / "stdout").write_text(stdout)
    (folder / "stderr").write_text(stderr)
    program = folder / "pip-audit"
    program.write_text(f'#!/bin/sh\ncat "{folder}/stdout"\ncat "{folder}/stderr" >&2\nexit {code}\n')
    program.chmod(0o755)
    return str(program)


GOOD: dict[str, Any] = {"name": "good", "version": "1.0", "vulns": []}
BAD: dict[str, Any] = {"name": "bad", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
SKIPPED: dict[str, Any] = {"name": "lost", "skip_reason": "Dependency not found on PyPI and could not be audited"}


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([GOOD], 0, "1 of 1 pinned versions were looked up"),
        ([GOOD, BAD], 1, "bad 2.0: PYSEC-1, mended in 2.1"),
        ([GOOD, SKIPPED], 2, "does not answer for: lost"),
        ([BAD, SKIPPED], 1, "bad 2.0: PYSEC-1"),
        ([], 2, "0 of 0"),
    ],
)
def test_each_report_has_its_verdict(audit, tmp_path, found, code, said):
    program = a_pip_audit(tmp_path, json.dumps({"dependencies": found, "fixes": []}))
    verdict, lines = audit.judged(*audit.report(program, ["pins.txt"]))
    assert (verdict, said in "\n".join(lines)) == (code, True), lines


def test_a_service_that_cannot_be_reached_is_not_a_pass(audit, tmp_path):
    program = a_pip_audit(tmp_path, "", "ERROR:pip_audit._cli:could not connect\n", 1)
    assert audit.judged(*audit.report(program, ["pins.txt"])) == (
        2,
        ["the service could not be asked: ERROR:pip_audit._cli:could not connect"],
    )
