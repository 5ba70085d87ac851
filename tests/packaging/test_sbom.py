"""The bill of materials lists all that is pinned, the same each time, and nothing of the machine it was made on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statesvc_client import __version__

ROOT = Path(__file__).parents[2]
PINS = (ROOT / ".ci" / "requirements-run.txt").read_text()


def made() -> str:
    command = [sys.executable, str(ROOT / ".ci" / "sbom.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def text() -> str:
    return made()


@pytest.fixture(scope="module")
def bill(text: str) -> dict[str, Any]:
    return json.loads(text)


def test_everything_that_is_pinned_is_listed_with_its_hashes_and_its_licence(bill):
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", PINS, flags=re.MULTILINE))
    listed = {each["name"]: each for each in bill["components"] if each["name"] != "statesvc-client"}
    assert {name: each["version"] for name, each in listed.items()} == pinned
    for name, each in listed.items():
        (files,) = each["externalReferences"]
        block = PINS.split(f"\n{name}=={pinned[name]} \\\n", 1)[1].split("==", 1)[0]
        assert [each["content"] for each in files["hashes"]] == sorted(re.findall(r"sha256:([0-9a-f]{64})", block))
        assert files["hashes"]
        (licence,) = each["licenses"]
        assert licence.get("expression") or licence["license"]["name"]
        assert each["purl"] == each["bom-ref"] == f"pkg:pypi/{name}@{pinned[name]}"


def test_the_product_is_named_and_what_runs_is_told_from_what_builds(bill):
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    product = bill["metadata"]["component"]
    assert (product["name"], product["version"], product["type"]) == ("statesvc", __version__, "application")
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    assert {name for name, scope in scopes.items() if scope == "excluded"} >= {"hatchling", "editables"}
    assert {"statesvc-client", "apsw", "uvloop", "redis", "multidict", "urllib3"} <= {
        name for name, scope in scopes.items() if scope == "required"
    }


def test_every_dependency_leads_to_something_that_is_listed(bill):
    refs = {each["bom-ref"] for each in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    told = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert told.keys() == refs
    assert {ref for needed in told.values() for ref in needed} <= refs
    assert f"pkg:pypi/msgspec@{_version(bill, 'msgspec')}" in told[f"pkg:pypi/statesvc-client@{__version__}"]


def _version(bill: dict[str, Any], name: str) -> str:
    return next(each["version"] for each in bill["components"] if each["name"] == name)


def test_the_same_pins_give_the_same_bytes(text):
    assert made() == text


def test_it_names_no_path_no_host_and_no_time(text):
    assert not re.findall(r"https?://|file:|\"timestamp\"", text)
    assert str(ROOT) not in text
    assert sys.prefix not in text
