"""The client's page tells the truth: what it shows runs, what it names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

from statesvc_client.desk import Counters
from statesvc_client.options import OptionFields, Options
from tests.client.conftest import ROOT, plain_environment

PAGE = (ROOT / "docs" / "CLIENT.md").read_text()


def test_the_examples_run_one_after_the_other(socket_folder):
    first, second = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    for code, printed in ((first, ["4242", "1"]), (second, ["1"])):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=socket_folder, env=plain_environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == printed
        assert all(line.startswith("[STATE] ") for line in done.stderr.splitlines())


def test_every_option_is_named_and_can_be_given():
    for name in OptionFields.__annotations__:
        assert f"`{name}`" in PAGE, name
    assert OptionFields.__annotations__.keys() <= {field.name for field in fields(Options)}


def test_every_counter_is_named():
    named = re.search(r"is a snapshot: `([^`]*)`", PAGE)
    assert named is not None
    assert sorted(named[1].split()) == sorted(Counters.__struct_fields__)
