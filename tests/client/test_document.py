"""The client's page tells the truth: what it shows runs, what it names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import statesvc_client
from statesvc_client.desk import Counters
from statesvc_client.options import OptionFields, Options
from tests.client.conftest import ROOT, plain_environment

PAGE = (ROOT / "docs" / "CLIENT.md").read_text()


PRINTED = [
    ["4242", "1"],
    ["1"],
    ["PENDING"],
    ["created", "PENDING RUNNING", "note 50"],
    ["one holder", "too late", "leader True"],
    ["4000"],
    ["hello you", "['greeted']", "COMPLETED"],
]


def test_the_examples_run_one_after_the_other(socket_folder):
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    for code, printed in zip(examples, PRINTED, strict=True):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=socket_folder, env=plain_environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == printed
        assert all(line.startswith("[STATE] ") for line in done.stderr.splitlines()), done.stderr


def test_every_public_name_is_there_and_the_page_names_the_faces_methods():
    for name in statesvc_client.__all__:
        assert getattr(statesvc_client, name) is not None
    for name in dir(statesvc_client.StateStore):
        if not name.startswith("_"):
            assert re.search(rf"\b{name}\b", PAGE), name


def test_every_option_is_named_and_can_be_given():
    for name in OptionFields.__annotations__:
        assert f"`{name}`" in PAGE, name
    assert OptionFields.__annotations__.keys() <= {field.name for field in fields(Options)}


def test_every_counter_is_named():
    named = re.search(r"is a snapshot: `([^`]*)`", PAGE)
    assert named is not None
    assert sorted(named[1].split()) == sorted(Counters.__struct_fields__)
