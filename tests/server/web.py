"""A client for ASGI applications in the same process: requests without a socket."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from msgspec import json


class Response:
    """What came back."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.cookies: list[str] = []
        self.body = b""

    @property
    def json(self) -> Any:
        return json.decode(self.body)

    def __repr__(self) -> str:
        return f"<{self.status} {self.body[:500]!r}>"


class Web:
    """Asks one application. `headers` go with every request."""

    def __init__(self, app: Any, headers: Mapping[str, str] | None = None, peer: str = "127.0.0.1") -> None:
        self.app, self.headers, self.peer = app, dict(headers or {}), peer

    def with_headers(self, **headers: str) -> "Web":
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return Web(self.app, self.headers | more, self.peer)

    def _scope(self, method: str, path: str, query: Any, headers: Mapping[str, str]) -> dict[str, Any]:
        path, _, text = path.partition("?")
        text = text or urlencode(query or {}, doseq=True)
        sent = {"host": "localhost"} | self.headers | dict(headers)
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": text.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.items()],
            "client": (self.peer, 1234),
            "server": ("localhost", 80),
            "state": {},
        }

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Any = None,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Response:
        """One request. `body` is sent as JSON, `data` as it is."""
        sent = dict(headers or {})
        if data is None and body is not None:
            data = json.encode(body)
        if data is not None:
            sent = {"content-type": "application/json"} | sent
        messages = [{"type": "http.request", "body": data or b"", "more_body": False}]
        response = Response()

        async def receive() -> Any:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            _take(response, message)

        await self.app(self._scope(method, path, query, sent), receive, send)
        return response

    async def get(self, path: str, **query: Any) -> Response:
        return await self.ask("GET", path, query=query)

    async def post(self, path: str, body: Any = None, **headers: str) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", path, {} if body is None else body, headers=named)

    @asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator["Stream"]:
        """A response that goes on; the client is gone at the end of the block."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        stream = Stream()
        task = asyncio.create_task(self.app(self._scope("GET", path, None, named), stream.receive, stream.send))
        try:
            yield stream
        finally:
            stream.gone.set()
            await asyncio.wait_for(task, 10)


class Stream:
    """The other side of a stream of events."""

    def __init__(self) -> None:
        self.response = Response()
        self.gone = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._rest = b""
        self._asked = False

    async def receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            _take(self.response, message)
        else:
            if message.get("body"):
                await self._parts.put(message["body"])
            if not message.get("more_body"):
                await self._parts.put(None)

    async def event(self, timeout: float = 10) -> dict[str, str] | None:
        """The next event, without comments; None at the end of the stream."""
        while True:
            while b"\n\n" not in self._rest:
                part = await asyncio.wait_for(self._parts.get(), timeout)
                if part is None:
                    return None
                self._rest += part
            text, _, self._rest = self._rest.partition(b"\n\n")
            lines = [line.split(": ", 1) for line in text.decode().splitlines() if not line.startswith(":")]
            if lines:
                return dict(lines)

    async def named(self, name: str, timeout: float = 10) -> dict[str, str]:
        """The next event of that name."""
        while (found := await self.event(timeout)) is not None:
            if found["event"] == name:
                return found
        raise AssertionError(f"the stream ended before an event {name!r}")


def _take(response: Response, message: Any) -> None:
    if message["type"] == "http.response.start":
        response.status = message["status"]
        response.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        response.cookies = [value.decode() for name, value in message["headers"] if name == b"set-cookie"]
    elif message["type"] == "http.response.body":
        response.body += message.get("body", b"")
