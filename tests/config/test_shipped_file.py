"""config/statesvc.yml is the manual: every key stands there, at its default, with words above it."""

from __future__ import annotations

from pathlib import Path

import yaml

from statesvc.config import Settings, load
from statesvc.config.model import leaves
from statesvc.config.sources import as_plain

SHIPPED = Path(__file__).parents[2] / "config" / "statesvc.yml"


def flattened(section, prefix=""):
    keys = {key for key, _ in leaves()}
    for name, value in section.items():
        if isinstance(value, dict) and prefix + name not in keys:
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def test_the_shipped_file_holds_every_key_at_its_default_and_no_other():
    in_file = dict(flattened(yaml.safe_load(SHIPPED.read_text())["state"]))
    assert in_file == as_plain(Settings())
    assert list(in_file) == list(as_plain(Settings()))


def test_the_shipped_file_loads_as_the_defaults():
    loaded = load({"config": SHIPPED}, {})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {f"file {SHIPPED}"}


def test_every_section_and_every_group_of_keys_is_explained():
    lines = SHIPPED.read_text().splitlines()
    after_a_gap = [n for n, line in enumerate(lines) if n and not lines[n - 1].strip() and line.strip()]
    unexplained = [
        lines[n] for n in after_a_gap if not lines[n].lstrip().startswith("#") and not lines[n].rstrip().endswith(":")
    ]
    assert unexplained == []
