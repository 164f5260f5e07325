"""The built files of the dashboard, and the headers that keep a browser safe."""

from __future__ import annotations

import html
from importlib.resources import files
from mimetypes import guess_type
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from batuta.ids import new_trace_id
from batuta.server.http.call import Refused
from batuta.server.http.endpoint import refusal, route_path
from batuta.server.http.security_headers import SECURITY_HEADERS

BASE = "__BATUTA_BASE__"
"""In index.html: where the server is mounted, with a slash at its end."""
_EMPTY = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>Batuta</title><h1>Batuta</h1>"
    "<p>This build has no dashboard. The API is at <a href='api/v1/overview'>api/v1</a>, and described at "
    "<a href='docs'>docs</a>.</p></html>"
)


class StaticFiles:
    """Read once: they are part of the package and do not change while it runs."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, str]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method not in ("GET", "HEAD"):
            refused = Refused(405, "method_not_allowed", "this path takes GET, HEAD")
            response = refusal(refused.problem, new_trace_id())
            response.headers["Allow"] = "GET, HEAD"
        else:
            response = self._file(route_path(scope).strip("/"), str(scope.get("root_path", "")).rstrip("/") + "/")
        for name, value in SECURITY_HEADERS.items():
            response.headers[name] = value
        await response(scope, receive, send)

    def _file(self, path: str, base: str) -> Response:
        found = self._read(unquote(path)) if path and path != "index.html" else None
        if found is not None:
            age = "public, max-age=31536000, immutable" if path.startswith("assets/") else "no-cache"
            return Response(found[0], headers={"Content-Type": found[1], "Cache-Control": age})
        if path.startswith("assets/"):
            refused = Refused(404, "not_found", "the dashboard has no such file: load the page again")
            return refusal(refused.problem, new_trace_id())
        page = self._read("index.html")
        text = _EMPTY if page is None else page[0].decode().replace(BASE, html.escape(base))
        return HTMLResponse(text, headers={"Cache-Control": "no-cache"})

    def _read(self, path: str) -> tuple[bytes, str] | None:
        if path in self._kept:
            return self._kept[path]
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\\" in part or "\x00" in part for part in parts):
            return None
        file = files("batuta.server").joinpath("static", *parts)
        if not file.is_file():
            return None
        kind = guess_type(path)[0] or "application/octet-stream"
        kept = (file.read_bytes(), f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
        if len(self._kept) < 1_000:
            self._kept[path] = kept
        return kept
