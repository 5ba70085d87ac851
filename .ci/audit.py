"""Known vulnerabilities in what is pinned: `python .ci/audit.py PIP_AUDIT REQUIREMENTS...`.

Owns the verdict on what pip-audit reports. Exits 0 when every pinned version was looked up and none is known to be
vulnerable, 1 when one is, 2 when the service could not be asked about all of them: not knowing is not a pass. By itself
pip-audit calls a version that the service does not know "skipped", and is content.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

CLEAN, VULNERABLE, NOT_KNOWN = 0, 1, 2


def report(pip_audit: str, requirements: list[str]) -> tuple[dict[str, Any] | None, str]:
    """What it found, None when it could not; and what it said about it."""
    files = [word for each in requirements for word in ("-r", each)]
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [pip_audit, *options, *files]
    run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the Makefile's own words
    try:
        return json.loads(run.stdout), run.stderr
    except ValueError:
        return None, run.stderr


def judged(found: dict[str, Any] | None, said: str) -> tuple[int, list[str]]:
    """The exit code, and lines for people."""
    if found is None:
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        return NOT_KNOWN, [f"the service could not be asked: {last[0]}"]
    all_of_them = found["dependencies"]
    bad = [
        f"{each['name']} {each['version']}: {vuln['id']}, mended in {', '.join(vuln['fix_versions']) or 'none yet'}"
        for each in all_of_them
        for vuln in each.get("vulns", [])
    ]
    skipped = [each["name"] for each in all_of_them if "skip_reason" in each]
    lines = [*bad, f"{len(all_of_them) - len(skipped)} of {len(all_of_them)} pinned versions were looked up"]
    if skipped:
        lines.append(f"the service does not answer for: {', '.join(skipped)}")
    if bad:
        return VULNERABLE, lines
    return (NOT_KNOWN if skipped or not all_of_them else CLEAN), lines


def main() -> int:
    code, lines = judged(*report(sys.argv[1], sys.argv[2:]))
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
