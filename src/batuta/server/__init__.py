"""The server: a REST API and a dashboard for every feature of the engine. `pip install 'batuta[server]'`.

from batuta.server import dashboard

app.mount("/batuta", dashboard(client))  # in an application of your own; `batuta server` runs one by itself
"""

from __future__ import annotations

from batuta.errors import MissingExtra

try:
    import starlette  # noqa: F401 - only whether it is there
except ImportError as error:
    raise MissingExtra("batuta.server", "server") from error

from batuta.server.app import Server, dashboard
from batuta.server.http.call import Answer, Call, Principal, Refused
from batuta.server.http.routing import Repeat, Route, Scope, route
from batuta.server.pages import Action, Gauge, Gauges, Page, Table

__all__ = [
    "Action",
    "Answer",
    "Call",
    "Gauge",
    "Gauges",
    "Page",
    "Principal",
    "Refused",
    "Repeat",
    "Route",
    "Scope",
    "Server",
    "Table",
    "dashboard",
    "route",
]
