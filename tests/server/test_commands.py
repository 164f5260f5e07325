"""Every command of the command line is a route, or needs what only its machine has."""

import click
import pytest

from batuta.cli import root
from batuta.server.dead_letters import DeadLetterFilter
from batuta.server.filters import Filter
from batuta.server.http.routing import Route
from batuta.server.table import TABLE

LOCAL = {
    "backup": "a file of this machine",
    "cache": "another database",
    "check": "code",
    "demo": "a terminal",
    "flows export": "files of this machine",
    "flows test": "files of this machine",
    "dev": "a server itself",
    "keys": "payload keys",
    "migrate": "before a server can start",
    "replay": "code",
    "server": "a server itself",
    "verify": "reads the whole database",
    "worker": "code",
}
"""Commands, alone or all of a group, that are no routes, and what they need."""
WRITTEN_OTHERWISE = {
    "activities complete": "POST /api/v1/activities/complete",
    "activities fail": "POST /api/v1/activities/fail",
    "activities heartbeat": "POST /api/v1/activities/heartbeat",
    "api-keys create": "POST /api/v1/api-keys",
    "api-keys revoke": "DELETE /api/v1/api-keys/{id}",
    "dead-letters discard": "POST /api/v1/dead-letters/discard",
    "dead-letters reprocess": "POST /api/v1/dead-letters/reprocess",
    "bus delete": "DELETE /api/v1/bus/subscriptions/{id}",
    "bus lag": "GET /api/v1/bus",
    "bus messages": "GET /api/v1/bus/messages",
    "bus prune": "POST /api/v1/bus/prune",
    "bus publish": "POST /api/v1/bus/messages",
    "bus subscriptions": "GET /api/v1/bus",
    "bus topics": "GET /api/v1/bus",
    "flows publish": "POST /api/workflows/{id}/publish",
    "flows push": "POST /api/workflows",
    "flows secrets delete": "DELETE /api/secrets/{name}",
    "flows secrets list": "GET /api/secrets",
    "flows secrets set": "PUT /api/secrets/{name}",
    "flows validate": "POST /api/workflows/validate",
    "idempotency delete": "DELETE /api/v1/idempotency",
    "jobs enqueue": "POST /api/v1/jobs",
    "partners close": "PUT /api/v1/partners/breakers/{name}",
    "partners off": "PUT /api/v1/partners/breakers/{name}",
    "partners open": "PUT /api/v1/partners/breakers/{name}",
    "partners delete": "DELETE /api/v1/partners/limits/{name}",
    "partners limit": "PUT /api/v1/partners/limits/{name}",
    "partners hold": "POST /api/v1/partners/limits/{name}/hold",
    "partners release": "POST /api/v1/partners/limits/{name}/release",
    "partners reset": "POST /api/v1/partners/limits/{name}/reset",
    "partners sync": "POST /api/v1/partners/limits/{name}/sync",
    "prune": "POST /api/v1/retention/prune",
    "queues limit": "PATCH /api/v1/queues/{name}",
    "quotas delete": "DELETE /api/v1/quotas/{name}",
    "quotas set": "PUT /api/v1/quotas/{name}",
    "redaction off": "PUT /api/v1/redaction",
    "redaction on": "PUT /api/v1/redaction",
    "redaction show": "GET /api/v1/redaction",
    "retention delete": "DELETE /api/v1/retention",
    "retention set": "PUT /api/v1/retention",
    "runs delete": "DELETE /api/v1/runs/{id}",
    "runs start": "POST /api/v1/runs",
    "schedules create": "POST /api/v1/schedules",
    "schedules delete": "DELETE /api/v1/schedules/{id}",
    "webhooks create": "POST /api/v1/webhooks",
    "webhooks delete": "DELETE /api/v1/webhooks/{id}",
    "webhooks resend": "POST /api/v1/webhooks/deliveries/{id}/resend",
    "webhooks send": "POST /api/v1/webhooks/send",
    "webhooks update": "PATCH /api/v1/webhooks/{id}",
}
OF_THE_TERMINAL = {"--url", "--namespace", "--json", "--help", "--yes", "--app", "--reveal"}
"""`--yes` answers a question that HTTP does not ask; `reveal` is a parameter of each route with payloads."""
RENAMED = {
    "--tag": {"tag", "tags"},
    "--all": {"everything"},
    "--inactive": {"activate"},
    "--no-retry": {"retry"},
    "--rate": {"rate", "rates"},
    "--type": {"type", "types"},
    "--address": {"url"},  # --url is the database
    "--endpoint": {"endpoint", "endpoints"},
    "--name": {"name", "workflow"},  # a rule of retention says workflow, as the document of rules does
}
ELSEWHERE = {
    ("runs diff", "--exact"): "how a terminal shows it",
    ("runs diff", "--all"): "how a terminal shows it",
    ("runs timeline", "--exact"): "how a terminal shows it",
    ("runs timeline", "--all"): "how a terminal shows it",
    ("runs journal", "--export"): "a file of this machine",
    ("runs journal", "--full"): "the API cuts nothing",
    ("workers", "--code"): "the API cuts nothing",
    ("workers", "--schema"): "GET /api/v1/workflows/{name}",
    ("runs start", "--wait"): "GET /api/v1/runs/{id}?wait=",
    ("runs start", "--wait-timeout"): "GET /api/v1/runs/{id}?wait=",
    ("jobs enqueue", "--wait"): "GET /api/v1/jobs/{id}?wait=",
    ("jobs enqueue", "--wait-timeout"): "GET /api/v1/jobs/{id}?wait=",
    ("flows push", "--publish"): "POST /api/workflows/{id}/publish",
    ("schedules create", "--replace"): "PUT /api/v1/schedules/{id}",
}
BULK = {"cancel", "delete", "fork", "pause", "reset", "resume", "retry", "terminate"}


def commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}

    def walk(command: click.Command, words: list[str]) -> None:
        if isinstance(command, click.Group):
            for word in command.list_commands(click.Context(command)):
                inner = command.get_command(click.Context(command), word)
                assert inner is not None
                walk(inner, [*words, word])
        else:
            found[" ".join(words)] = command

    walk(root, [])
    return found


COMMANDS = commands()
ROUTES = {f"{route.method} {route.path}": route for route in TABLE}


def route_of(name: str) -> Route:
    """The route of a command: by its words, unless it is written otherwise."""
    if name in WRITTEN_OTHERWISE:
        return ROUTES[WRITTEN_OTHERWISE[name]]
    noun, _, verb = name.partition(" ")
    place = f"/api/v1/{noun}"
    for known in (
        f"GET {place}" if verb in ("", "list") else "",
        *(f"{method} {place}/{{{word}}}/{verb}" for method in ("POST", "GET") for word in ("id", "name")),
        *(f"GET {place}/{{{word}}}" for word in ("id", "name") if verb == "show"),
        f"GET {place}/{verb}",
    ):
        if known in ROUTES:
            return ROUTES[known]
    raise AssertionError(f"`batuta {name}` has no route: add one, or say in LOCAL what it needs")


@pytest.mark.parametrize("name", sorted(name for name in COMMANDS if not LOCAL.keys() & {name, name.partition(" ")[0]}))
def test_a_command_is_a_route_and_its_options_are_parameters_of_the_same_name(name: str) -> None:
    route = route_of(name)
    known = set(route.query.__struct_fields__) | set(route.parameters)
    known |= set(getattr(route.body, "__struct_fields__", ()))
    noun, _, verb = name.partition(" ")
    if noun == "runs" and verb in BULK:  # one run by its path, many by a filter in a body
        known |= set(ROUTES["POST /api/v1/runs/bulk"].body.__struct_fields__)
    if "filter" in known:
        known |= set((DeadLetterFilter if noun == "dead-letters" else Filter).__struct_fields__)
    for option in {o for p in COMMANDS[name].params for o in p.opts if o.startswith("--")} - OF_THE_TERMINAL:
        if (name, option) in ELSEWHERE:
            continue
        wanted = RENAMED.get(option, {option.removeprefix("--").replace("-", "_")})
        assert wanted & known, f"`batuta {name} {option}`: {route.path} takes {sorted(known)}"


def test_what_is_called_local_is_a_command() -> None:
    assert LOCAL.keys() <= {name.partition(" ")[0] for name in COMMANDS} | COMMANDS.keys()
