"""How a run may be started: options as a caller gives them, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batuta.authoring.definitions import Workflow, check_version, check_workflow_name
from batuta.authoring.names import check_name
from batuta.authoring.options import check_seconds
from batuta.authoring.retry import Retry
from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.serde import encode

LARGEST_MEMO = 16 * 1024
_LONGEST_ID = 500
_HIGHEST_PRIORITY = 32_000
_MOST_HEADERS, _LONGEST_HEADER = 4_096, 100


def check_id(id: object) -> str:
    """A run's id, as a caller may choose it. Raises InvalidInput."""
    if not isinstance(id, str) or not id or len(id) > _LONGEST_ID or not id.isprintable():
        raise InvalidInput(f"run id {id!r} must be 1 to {_LONGEST_ID} printable characters")
    return id


def check_run_id(run_id: object) -> RunId:
    """A run's run id, also as text. Raises InvalidInput."""
    try:
        return run_id if isinstance(run_id, RunId) else RunId(str(run_id))
    except ValueError:
        raise InvalidInput(f"{run_id!r} is no run id: `describe()` and `batuta runs show` tell a run's") from None


def name_version_input(workflow: Any, args: tuple[Any, ...], version: str | None, limit: int) -> tuple[str, str, bytes]:
    """Name, version and encoded arguments of a run of that workflow, which may be given by its name."""
    if isinstance(workflow, Workflow):
        name, own, data = workflow.name, workflow.version, workflow.codec.encode_args(args, {}, limit)
    elif isinstance(workflow, str):
        name, own = check_workflow_name(workflow), ""
        data = encode(args, f"the input of workflow {workflow!r}", limit)
    else:
        raise InvalidInput(f"{workflow!r} is not a workflow: decorate it with @workflow, or give its name")
    return name, own if version is None else version, data


def check_start_options(options: Mapping[str, Any]) -> None:
    """What `start` and the starts of children have in common. Raises InvalidInput."""
    for name in ("timeout", "execution_timeout", "expires"):
        check_seconds(name, options.get(name))
    delay = options.get("delay", 0)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay < 1e10:
        raise InvalidInput(f"delay={delay!r} must not be negative or beyond 1e10: it is a number of seconds")
    priority = options.get("priority", 0)
    if not isinstance(priority, int) or abs(priority) > _HIGHEST_PRIORITY:
        raise InvalidInput(
            f"priority={priority!r} must be a whole number from -{_HIGHEST_PRIORITY} to {_HIGHEST_PRIORITY}"
        )
    if options.get("queue") is not None:
        check_name(options["queue"], "queue")
    if options.get("key"):
        check_name(options["key"], "key")
    if options.get("version") is not None:
        check_version(options["version"])
    retry = options.get("retry")
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidInput(f"retry={retry!r} must be a Retry(...)")
    check_tags(options.get("tags") or {})
    check_headers(options.get("headers") or {})


def check_tags(tags: object) -> Mapping[str, str]:
    """Raises InvalidInput."""
    if not isinstance(tags, Mapping) or not all(isinstance(text, str) for pair in tags.items() for text in pair):
        raise InvalidInput(f"tags={tags!r} must map strings to strings")
    if any("\x00" in text for pair in tags.items() for text in pair):
        raise InvalidInput(f"tags={tags!r} hold a NUL character: no store can find such a tag")
    return tags


def check_headers(headers: object) -> Mapping[str, str]:
    """Raises InvalidInput."""
    if type(headers) is not dict and not isinstance(headers, Mapping):
        raise InvalidInput(f"headers={headers!r} must map strings to strings")
    try:
        whole = "".join([*headers, *headers.values()])
    except TypeError:
        raise InvalidInput(f"headers={headers!r} must map strings to strings") from None
    if "" in headers:
        raise InvalidInput(f"headers={headers!r} must map strings to strings")
    if "\x00" in whole:
        name = next(name for name, text in headers.items() if "\x00" in name + text)
        raise InvalidInput(f"header {name!r} holds a NUL character: no store can keep that")
    size = len(whole)
    if size > _MOST_HEADERS or (size > _LONGEST_HEADER and max(map(len, headers)) > _LONGEST_HEADER):
        raise InvalidInput(
            f"headers of {size:,} characters ({', '.join(sorted(headers)[:5])}) are too much: they go with everything "
            f"that the run calls; {_MOST_HEADERS:,} in all, {_LONGEST_HEADER} for a name"
        )
    return headers
