"""The page on the queue tells the truth: its conversation runs, its fields are those the queue goes by."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from statesvc_client.spelling import QUEUE_FIELDS
from tests.daemon.harness import ROOT, serving
from tests.docs.conversing import Conversation, blocks

PAGE = ROOT / "docs" / "QUEUE.md"


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_the_lines_of_the_page_are_answered_as_the_page_says(backend: str, socket_folder: Path):
    (block,) = blocks(PAGE, "json")
    with serving(socket_folder, backend=backend) as daemon:
        conversation = Conversation(daemon.socket)
        conversation.play(block)
        conversation.close()


def test_every_field_of_the_queue_is_explained():
    text = PAGE.read_text()
    table = text[text.index("## Fields") : text.index("## Which one comes next")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert explained == {"status", *QUEUE_FIELDS}
