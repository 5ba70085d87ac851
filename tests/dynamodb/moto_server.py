"""moto's DynamoDB as a program: `python -m tests.dynamodb.moto_server [--whole]`, which prints its address.

Owns how a request comes to moto. One request at a time: moto's own threaded server is not atomic. It ends when its
standard input is closed, so with whoever started it.

By default requests go straight to moto's handler, on the storage of `quick`. With --whole all of moto answers,
identities included, as it is, slowly.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import sys
import traceback
import zlib
from collections.abc import Callable
from datetime import datetime
from email.utils import formatdate
from typing import Any

import msgspec
import uvloop

from tests.dynamodb.serving import Handler, Reply, Request, Served

JSON = "application/x-amz-json-1.0"
ACCOUNT = "123456789012"


class Quick:
    """Straight to the handler of each operation."""

    def __init__(self) -> None:
        from moto.dynamodb.responses import DynamoHandler

        from tests.dynamodb import quick, shelves, strict

        quick.install()
        self._strict = strict
        self._settings = shelves.Settings
        self._handler = DynamoHandler
        self._tokens = strict.Tokens()
        self._names: dict[str, str] = {}

    def __call__(self, request: Request) -> Reply:
        from werkzeug.exceptions import HTTPException

        if request.path == "/-/settings":
            for name, value in msgspec.json.decode(request.body).items():
                setattr(self._settings, name, value)
            self._strict.asked_for.clear()
            return Reply(200, b"{}")
        if request.path == "/-/actions":
            return Reply(200, msgspec.json.encode(sorted(self._strict.asked_for)))
        try:
            status, body = 200, self._answer(request)
        except HTTPException as problem:
            status, body = problem.code or 400, str(problem.description).encode()
        except Exception:  # noqa: BLE001 - what moto did not expect of a request is told, and fails the test
            traceback.print_exc()
            status, body = 400, b'{"__type": "MotoRaised", "message": "see the stderr of the server"}'
        date = formatdate(usegmt=True)
        return Reply(status, body, {"content-type": JSON, "x-amz-crc32": str(zlib.crc32(body)), "date": date})

    def _answer(self, request: Request) -> bytes:
        asked = msgspec.json.decode(request.body)
        _binary_as_bytes(asked)
        token, digest = asked.get("ClientRequestToken"), b""
        if token is not None:
            digest = self._strict.digest_of(request.body)
            if (known := self._tokens.known(token, digest)) is not None:
                return bytes(known)
        region = request.headers.get("authorization", "//us-east-1").split("/")[2]
        self._strict.authorize(request.operation, asked, region, ACCOUNT)
        self._strict.check(request.operation, asked)
        handler = self._handler()
        handler.body = asked
        handler.region = region
        handler.current_account = ACCOUNT
        result = getattr(handler, self._method(request.operation))()
        body = _encoded(result.result)
        if token is not None:
            self._tokens.keep(token, digest, body)
        return body

    def _method(self, operation: str) -> str:
        from moto.core.utils import camelcase_to_underscores

        if operation not in self._names:
            self._names[operation] = camelcase_to_underscores(operation)
        return self._names[operation]


def _binary_as_bytes(value: Any) -> None:
    """In place. moto counts binary values by their text, which is a third longer."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "B" and isinstance(each, str):
                value[name] = base64.b64decode(each)
            elif isinstance(each, dict | list):
                _binary_as_bytes(each)
    else:
        for each in value:
            if isinstance(each, dict | list):
                _binary_as_bytes(each)


def _encoded(result: Any) -> bytes:
    from moto.dynamodb.models.dynamo_type import DynamoType

    def plain(value: Any) -> Any:
        if isinstance(value, DynamoType):
            return {value.type: value.value}
        if isinstance(value, datetime):
            return value.timestamp()
        if hasattr(value, "to_json"):
            return value.to_json()
        raise NotImplementedError(type(value))

    return msgspec.json.encode(result, enc_hook=plain)


class Whole:
    """All of moto, through the application its own server has."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)

    def __call__(self, request: Request) -> Reply:
        path, _, query = request.path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": path,
            "RAW_URI": request.path,
            "QUERY_STRING": query,
            "SERVER_PROTOCOL": "HTTP/1.1",
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": request.headers.get("host", "").rpartition(":")[2] or "80",
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(request.body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(request.body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": False,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        environ |= {"HTTP_" + name.upper().replace("-", "_"): value for name, value in request.headers.items()}
        told: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], _: Any = None) -> Callable[[bytes], None]:
            told.extend((int(status[:3]), headers))
            return lambda _: None

        body = b"".join(self._application(environ, start))
        headers = {
            name.lower(): value for name, value in told[1] if name.lower() not in {"content-length", "connection"}
        }
        return Reply(told[0], body, headers)


async def _serve(handler: Handler) -> None:
    served = Served(handler)
    await served.open()
    print(served.url, flush=True)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: ended.set() if not os.read(sys.stdin.fileno(), 1024) else None)
    await ended.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(Whole() if "--whole" in sys.argv else Quick()))
