"""A configuration that cannot be right is named, with 78, before anything is touched."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.daemon.harness import environment, refused

BAD_CONFIGURATION = 78


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--durability", "maybe"), "durability"),
        (("--drain-seconds", "-1"), "drain_seconds"),
        (("--config", "/nowhere/statesvc.yml"), "/nowhere/statesvc.yml"),
        (("--log-level", "loud"), "log.level"),
    ],
)
def test_a_bad_configuration_is_named_before_anything_is_touched(folder, flags, word):
    code, said = refused(folder, *flags)
    assert code == BAD_CONFIGURATION
    assert word in said
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("stderr")) == []


def test_an_unknown_setting_in_the_environment_is_named(folder):
    code, said = refused(folder, settings={"limits__clientz": 3})
    assert code == BAD_CONFIGURATION
    assert "limits.clientz" in said


def test_an_unknown_engine_is_named(folder):
    code, said = refused(folder, backend="etcd")
    assert code == BAD_CONFIGURATION
    assert "etcd" in said


@pytest.mark.parametrize("number", range(3, 15))
def test_a_parent_descriptor_that_is_not_open_is_never_taken_for_one_of_our_own(folder, number):
    code, said = refused(folder, "--parent-fd", str(number))
    assert code == BAD_CONFIGURATION
    assert f"descriptor {number}, meant to tell of the parent's end, is not open" in said
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("stderr")) == []


def test_a_parent_descriptor_that_is_not_open_is_a_bad_configuration(folder):
    command = [sys.executable, "-m", "statesvc", "serve", "--socket", str(folder / "s.sock"), "--backend", "memory"]
    run = subprocess.run(
        [*command, "--parent-fd", "77"], env=environment(), capture_output=True, text=True, check=False
    )
    assert run.returncode == BAD_CONFIGURATION
    assert "descriptor 77" in run.stderr
    assert not (folder / "s.sock").exists()
