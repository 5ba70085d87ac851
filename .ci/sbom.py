"""The software bill of materials of a release, as CycloneDX 1.6: `python .ci/sbom.py [FILE]`.

Owns what is listed: both distributions, everything pinned in requirements-run.txt with the hashes of its files, its
licence and what depends on it. Reads the pins and the licences of what is installed, which must be the pinned versions;
the same pins give the same bytes. Standard library only, so that making the list adds nothing to it.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PINS = ROOT / ".ci" / "requirements-run.txt"

_LICENCE_CHARS = 64
"""A License field longer than this is the whole text of one, not its name."""


class Pin(NamedTuple):
    """One pinned requirement."""

    name: str
    version: str
    hashes: tuple[str, ...]
    wanted_by: frozenset[str]


def read_pins(text: str) -> list[Pin]:
    """What pip-compile wrote: `name==version \\`, lines of hashes, and `# via` with who wants it."""
    blocks = re.findall(r"^([a-z0-9-]+)==(\S+) \\\n((?:[ ]+.*\n?)+)", text, flags=re.MULTILINE)
    return [
        Pin(name, version, tuple(sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest))), _wanted_by(rest))
        for name, version, rest in blocks
    ]


def _wanted_by(rest: str) -> frozenset[str]:
    comments = "\n".join(line for line in rest.splitlines() if line.lstrip().startswith("#"))
    return frozenset(re.findall(r"#\s+(?:via )?([a-z0-9-]+)$", comments, flags=re.MULTILINE)) - {"via"}


def licence_of(name: str, version: str) -> dict[str, Any]:
    """As the installed distribution declares it."""
    found = metadata.metadata(name)
    if found["Version"] != version:
        raise SystemExit(f"{name} {found['Version']} is installed, {version} is pinned: run make setup")
    if expression := found.get("License-Expression"):
        return {"expression": expression}
    classified = [
        line.rpartition(" :: ")[2] for line in found.get_all("Classifier", []) if line.startswith("License ::")
    ]
    declared = (found.get("License") or "").strip()
    short = declared if 0 < len(declared) <= _LICENCE_CHARS and "\n" not in declared else ""
    name_of_it = short or " or ".join(classified)
    if not name_of_it:
        raise SystemExit(f"{name} {version} does not say what its licence is; add it by hand")
    return {"license": {"name": name_of_it}}


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def bill() -> dict[str, Any]:
    pins = read_pins(PINS.read_text())
    refs = {pin.name: purl(pin.name, pin.version) for pin in pins}
    own = {folder: _project(ROOT / folder) for folder in ("client", ".")}
    version = metadata.version("statesvc")
    for project in own.values():
        refs[project["name"]] = purl(project["name"], version)
    needs = {ref: set[str]() for ref in refs.values()}
    for pin in pins:
        for wanting in pin.wanted_by & refs.keys():
            needs[refs[wanting]].add(refs[pin.name])
    for project in own.values():
        needs[refs[project["name"]]] |= {refs[name] for name in _names(project["dependencies"])}
    product, client = own["."], own["client"]
    running = _reachable(refs[product["name"]], needs)
    components = [{**_own(client, version), "scope": "required"}] + [
        {**_component(pin, refs[pin.name]), "scope": "required" if refs[pin.name] in running else "excluded"}
        for pin in pins
    ]
    listed = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**_own(product, version), "type": "application"}},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(needs[ref])} for ref in sorted(needs)],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(listed, sort_keys=True))
    return {**listed, "serialNumber": f"urn:uuid:{serial}"}


def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ ;\[]", line, maxsplit=1)[0].lower() for line in requirements}


def _reachable(start: str, needs: dict[str, set[str]]) -> set[str]:
    found, new = set[str](), {start}
    while new:
        found |= new
        new = {ref for each in new for ref in needs[each]} - found
    return found


def _own(project: dict[str, Any], version: str) -> dict[str, Any]:
    name = project["name"]
    return {
        "type": "library",
        "bom-ref": purl(name, version),
        "name": name,
        "version": version,
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"]}}],
        "purl": purl(name, version),
    }


def _component(pin: Pin, ref: str) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": each} for each in pin.hashes]
    return {
        "type": "library",
        "bom-ref": ref,
        "name": pin.name,
        "version": pin.version,
        "licenses": [licence_of(pin.name, pin.version)],
        "purl": ref,
        # One for every file it is distributed in; an installation has taken one of them.
        "externalReferences": [{"type": "distribution", "url": ref, "hashes": hashes}],
    }


def main() -> None:
    text = json.dumps(bill(), indent=2, sort_keys=True) + "\n"
    if len(sys.argv) > 1:
        target = Path(sys.argv[1])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
