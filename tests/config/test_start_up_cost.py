"""What the daemon's socket must not wait for."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
import statesvc.cli
from statesvc.config import load
load({"socket": "/run/x.sock", "backend": "memory", "log.level": "debug"}, dict(STATESVC_LIMITS__CLIENTS="5"))
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""


def test_flags_and_environment_need_neither_yaml_nor_structlog_nor_pydantic():
    answer = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert {"yaml", "structlog", "pydantic", "rich", "difflib"}.isdisjoint(json.loads(answer.stdout))
