"""What a call to DynamoDB costs the daemon: against an endpoint that answers at once, from one process.

    python benchmarks/dynamodb_calls.py [calls] [connections]

Prints calls per second and processor time per call. The endpoint is a process of its own; on a machine with other work
the processor time is the figure to go by.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from statesvc.backends.dynamodb.calls import Access, Calls
from tests.dynamodb.servers import MADE_UP, REGION, Program

ROUNDS = 3
REQUEST = {"TableName": "joblet-jobs", "Key": {"jobId": {"S": "j" * 36}}, "ConsistentRead": True}


async def measure(calls: Calls, count: int, at_once: int) -> None:
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await calls.call("GetItem", REQUEST)

    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(at_once)))
    took, used = time.perf_counter() - began, time.process_time() - used
    print(f"{count / took:8,.0f} calls a second   {used / count * 1e6:6.0f} us of processor time a call")


async def main(count: int, connections: int) -> None:
    os.environ.update(MADE_UP)
    endpoint = Program("tests.dynamodb.canned")
    calls = Calls(Access(region=REGION, endpoint=endpoint.url, connections=connections))
    try:
        await calls.open()
        for _ in range(ROUNDS):
            await measure(calls, count, connections)
    finally:
        await calls.close()
        endpoint.end()


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:3]]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*(words + [10_000, 32][len(words) :])))
