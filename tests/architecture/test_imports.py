"""Imports go down only: who may enter which room."""

from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source import Import, imports, modules

FOUNDATION = (
    "errors",
    "clock",
    "ids",
    "serde",
    "settings",
    "telemetry",
    "failpoints",
    "redaction",
    "printable",
    "durations",
    "names",
    "problems",
)
ROOMS = ("engine", "stores", "resilience", "cache", "bus")
FRONT = ("app", "asgi", "check", "connect", "client", "metrics", "otel", "sync", "sync_flows", "sync_verbs", "verify")

RANK = (
    dict.fromkeys(FOUNDATION, 0)
    | {"journal": 1, "codecs": 1, "authoring": 2}
    | dict.fromkeys(ROOMS, 3)
    | {"webhooks": 4, "flows": 5}
    | dict.fromkeys(FRONT, 6)
    | {"server": 7, "cli": 8, "__main__": 9}
)
# Neighbours that may use each other; rooms of rank 3 may not.
TOGETHER = (frozenset(FOUNDATION), frozenset(FRONT))
# `import batuta` is the facade for users: it may take from these, and nothing below may import it.
FACADE_TAKES = frozenset({*FOUNDATION, "journal", "authoring", *FRONT})
FACADE_USERS = frozenset({"cli", "__main__", "testing"})
FORBIDDEN = frozenset(
    {("engine", "stores"), ("stores", "engine"), ("server", "engine"), ("server", "stores")},
)
MAY_IMPORT_LATE = frozenset({"", "client", "connect", "cli", "sync", "testing"})
OPTIONAL = frozenset(
    {
        "asyncpg",
        "cryptography",
        "httpcore2",
        "jsonschema",
        "opentelemetry",
        "prometheus_client",
        "pulsar",
        "pydantic",
        "redis",
        "starlette",
        "uvicorn",
        "uvloop",
    }
)


def ours() -> list[Import]:
    """Imports of batuta's own modules."""
    return [found for found in imports() if found.module.split(".")[0] == "batuta"]


def room(module: str) -> str:
    """The room of a module: its second name, or "" for the facade itself."""
    return [*module.split("."), ""][1]


def refusal(found: Import) -> str | None:
    """Why this import is not allowed, or None when it is."""
    importer, target = room(found.importer), room(found.module)
    if target == "testing" and importer != "testing":
        return "nothing imports testing"
    if importer == "testing" or (importer == target and importer):
        return None
    if target == "":
        return None if importer in FACADE_USERS else "only users and the command line import the facade"
    if importer == "":
        return None if target in FACADE_TAKES else "the facade takes from authoring and the front only"
    if (importer, target) in FORBIDDEN:
        return f"{importer} is handed what it needs from {target}, it never imports it"
    if any(importer in group and target in group for group in TOGETHER):
        return None
    return None if RANK[target] < RANK[importer] else "imports go down only"


def test_every_module_belongs_to_a_known_room() -> None:
    unknown = sorted({room(name) for name in modules()} - {*RANK, "", "testing"})
    assert not unknown, f"give these rooms a place in the layers: {unknown}"


def test_imports_go_down_only() -> None:
    wrong = [f"{found}: {why}" for found in ours() if (why := refusal(found))]
    assert not wrong, "\n".join(wrong)


def test_only_optional_dependencies_are_imported_inside_functions() -> None:
    wrong = [
        str(found)
        for found in imports()
        if found.late and room(found.importer) not in MAY_IMPORT_LATE and found.module.split(".")[0] not in OPTIONAL
    ]
    assert not wrong, "\n".join(wrong)


def test_optional_dependencies_are_never_imported_by_merely_importing_batuta() -> None:
    # Whole modules that exist only for an optional dependency may import it at their top: they are
    # themselves imported late, by connect, or by the user alone.
    rooms = ("stores.postgres", "metrics", "otel", "server", "testing")
    owners = tuple(f"batuta.{room}" for room in rooms)
    wrong = [
        str(found)
        for found in imports()
        if found.module.split(".")[0] in OPTIONAL
        and not found.late
        and not found.typing
        and not found.importer.startswith(owners)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_in_a_circle_not_even_for_its_types() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in ours():
        if not found.late and found.module in graph and found.module != found.importer:
            graph[found.importer].add(found.module)
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("importer", "module"),
    [
        ("batuta.engine.worker.worker", "batuta.stores.sqlite"),
        ("batuta.server.app", "batuta.engine.worker.worker"),
        ("batuta.journal.entries", "batuta.authoring.workflow"),
        ("batuta.engine.worker.worker", "batuta.testing.servers"),
        ("batuta.bus.topics", "batuta.cache.redis"),
        ("batuta.stores.memory", "batuta"),
        ("batuta", "batuta.engine.worker.worker"),
        ("batuta.ids", "batuta.journal.states"),
    ],
)
def test_the_rule_refuses_what_it_should(importer: str, module: str) -> None:
    assert refusal(Import(importer, module, 1, late=False, typing=False))


@pytest.mark.parametrize(
    ("importer", "module"),
    [
        ("batuta.engine.worker.worker", "batuta.journal.store"),
        ("batuta.engine.worker.worker", "batuta.engine.turn"),
        ("batuta.serde", "batuta.errors"),
        ("batuta.connect", "batuta.stores.sqlite"),
        ("batuta.client", "batuta.connect"),
        ("batuta.cli.demo", "batuta"),
        ("batuta.testing.conformance", "batuta.stores.memory"),
        ("batuta", "batuta.authoring.workflow"),
    ],
)
def test_the_rule_allows_what_it_should(importer: str, module: str) -> None:
    assert refusal(Import(importer, module, 1, late=False, typing=False)) is None
