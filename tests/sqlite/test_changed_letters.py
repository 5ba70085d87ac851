"""One letter on the disk is another: nobody is served what it leads to, a wrong record or a list without it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from statesvc.backends.port import DataCorrupt, Query
from statesvc.backends.sqlite.files import open_writer
from statesvc_client.errors import Internal
from tests.sqlite.filling import create, opened

WORD, OTHER = "unmistakable", "vnmistakable"


def change_a_letter(file: Path) -> None:
    content = file.read_bytes()
    assert WORD.encode() in content
    file.write_bytes(content.replace(WORD.encode(), OTHER.encode()))


async def test_a_record_with_another_letter_in_it_is_an_error_and_not_an_answer(tmp_path):
    async with opened(tmp_path) as engine:
        await create(engine, [WORD])
    change_a_letter(tmp_path / "state.db")
    with pytest.raises((DataCorrupt, Internal), match="checksum"):
        async with opened(tmp_path) as engine:
            await engine.get([("job", WORD), ("job", OTHER)])


async def test_a_list_by_an_index_with_another_letter_in_it_is_an_error_and_not_a_shorter_list(tmp_path):
    async with opened(tmp_path) as engine:
        await create(engine, ["one", "two"], labels=(("name", WORD),))
    change_a_letter(tmp_path / "state.db")
    with pytest.raises((DataCorrupt, Internal), match="checksum"):
        async with opened(tmp_path) as engine:
            await engine.query(Query(kind="job", limit=10, term=("label:name", WORD)))


async def test_a_record_that_was_changed_behind_every_page_checksum_is_an_error_and_not_an_answer(tmp_path):
    async with opened(tmp_path) as engine:
        await create(engine, [WORD])
    with closing(open_writer(tmp_path / "state.db")) as db:
        data = db.execute("SELECT data FROM record").get
        assert WORD.encode() in data
        db.execute("UPDATE record SET data = ?", (data.replace(WORD.encode(), OTHER.encode()),))
    with pytest.raises((DataCorrupt, Internal), match="checksum"):
        async with opened(tmp_path) as engine:
            await engine.get([("job", WORD)])
