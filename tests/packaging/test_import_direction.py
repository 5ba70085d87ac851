"""What import-linter cannot say without a list of names: the wire stands below every adapter, old or new."""

from __future__ import annotations

import grimp
import pytest

WIRE = {f"statesvc_client.{name}" for name in ("wire", "scanning", "framing", "errors", "_version")}


@pytest.mark.parametrize("module", ["wire", "scanning", "framing", "errors"])
def test_the_wire_knows_no_adapter_and_nothing_of_the_package_itself(module):
    graph = grimp.build_graph("statesvc_client", cache_dir=None)
    assert graph.find_upstream_modules(f"statesvc_client.{module}") <= WIRE
