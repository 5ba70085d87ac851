"""Bad input on every engine: one reply a line, a fixed code, the state unchanged, the connection usable."""

from __future__ import annotations

import json

from tests.faults.bad_lines import LINES
from tests.socket.talking import Daemon


async def test_a_bad_line_gets_its_code_and_changes_nothing(daemon: Daemon):
    talkers = [await daemon.talker(), await daemon.client("c")]
    before = (await talkers[0].ok("create", job={"uuid": "a", "status": "RUNNING", "text": "t"}))["job"]
    position = await daemon.engine.position()
    for what, (code, line) in LINES.items():
        for talker, ending in zip(talkers * 2, [b"\n", b"\n", b"\r\n", b"\r\n"], strict=True):
            talker.send_raw(line + ending)
            reply = await talker.receive()
            assert (reply["success"], reply["code"]) == (False, code), what
            assert len(json.dumps(reply)) < 1000
            assert await talker.ask("ping", requestId="still here") == {"requestId": "still here", "success": True}
        assert (await talkers[1].ok("get", jobId="a"))["job"] == before, what
        written = [entry.row.key for entry in await daemon.engine.read_log(position, 100)]
        assert [key for key in written if key != ("lock", "_sweeper")] == [], what
