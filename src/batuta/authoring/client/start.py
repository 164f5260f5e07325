"""How a run may be started: options as a caller gives them, checked."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Literal, TypedDict

from batuta.authoring.call_options import check_seconds
from batuta.authoring.definitions import Workflow, check_version, check_workflow_name
from batuta.authoring.retry import Retry
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.journal.records import IfExists
from batuta.names import LONGEST_ID, check_name, plain, quoted
from batuta.serde import encode

LARGEST_MEMO = 16 * 1024
MOST_TAGS = 64
_LONGEST_TAG, _LONGEST_VALUE = 200, 1_000
_HIGHEST_PRIORITY = 32_000
_MOST_HEADERS, _LONGEST_HEADER = 4_096, 100


class StartOptions(TypedDict, total=False):
    """The options of `start`, for type checkers. `Batuta.start` describes them."""

    queue: str
    priority: int
    delay: Duration
    timeout: Duration | None
    execution_timeout: Duration | None
    retry: Retry | None
    version: str | None
    tags: Mapping[str, str]
    memo: Any
    headers: Mapping[str, str]
    key: str
    expires: Duration | None
    if_exists: Literal["return", "same", "reject", "restart"] | IfExists
    signal: tuple[Any, Any] | tuple[Any, Any, str] | None


def check_id(id: object) -> str:
    """A run's id, as a caller may choose it. Raises InvalidInput."""
    id = plain(id)
    if not isinstance(id, str) or not id or len(id) > LONGEST_ID or not id.isprintable():
        raise InvalidInput(f"run id {quoted(id)} must be 1 to {LONGEST_ID} printable characters")
    return id


def check_run_id(run_id: object) -> RunId:
    """A run's run id, also as text. Raises InvalidInput."""
    try:
        return run_id if isinstance(run_id, RunId) else RunId(str(run_id))
    except ValueError:
        raise InvalidInput(f"{quoted(run_id)} is no run id: `describe()` and `batuta runs show` tell a run's") from None


def no_definition(given: object, what: str, verb: str) -> InvalidInput:
    """The error for a thing that is not a workflow or job, such as the coroutine of `start(order(17))`."""
    if isinstance(given, Coroutine):
        given.close()  # else Python warns that it was never awaited
        name = getattr(given, "__name__", "it")
        return InvalidInput(f"{name} was called here: give it and its arguments, as in {verb}({name}, ...)")
    return InvalidInput(f"{given!r} is not a {what}: decorate it with @{what}, or give its name")


def name_version_input(workflow: Any, args: tuple[Any, ...], version: str | None, limit: int) -> tuple[str, str, bytes]:
    """Name, version and encoded arguments of a run of that workflow, which may be given by its name."""
    if isinstance(workflow, Workflow):
        name, own, data = workflow.name, workflow.version, workflow.codec.encode_args(args, {}, limit)
    elif isinstance(workflow, str):
        name, own = check_workflow_name(workflow), ""
        data = encode(args, f"the input of workflow {workflow!r}", limit)
    else:
        raise no_definition(workflow, "workflow", "start")
    return name, own if version is None else version, data


def checked_start(workflow: Any, args: tuple[Any, ...], version: str | None, limit: int) -> tuple[str, str, bytes]:
    """The same for a client. Raises InvalidInput for arguments that do not fit the annotations of the definition; for
    another version of it the worker checks them."""
    name, chosen, data = name_version_input(workflow, args, version, limit)
    if isinstance(workflow, Workflow) and chosen == workflow.version:
        workflow.codec.decode_args(data)
    return name, chosen, data


def options_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that are not None, with each timedelta as seconds and each text as a plain one; a memo stays as it is."""
    return {
        name: value if name == "memo" else plain(in_seconds(value))
        for name, value in options.items()
        if value is not None
    }


def check_start_options(options: Mapping[str, Any], *, count: bool = True) -> None:
    """What `start` and the starts of children have in common. Raises InvalidInput. `count`: as of `check_tags`."""
    for name in ("timeout", "execution_timeout", "expires"):
        check_seconds(name, options.get(name))
    delay = options.get("delay", 0)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay < 1e10:
        raise InvalidInput(f"delay={delay!r} must be a number of seconds, or a timedelta, from 0 to 1e10")
    priority = options.get("priority", 0)
    if not isinstance(priority, int) or abs(priority) > _HIGHEST_PRIORITY:
        raise InvalidInput(
            f"priority={priority!r} must be a whole number from -{_HIGHEST_PRIORITY} to {_HIGHEST_PRIORITY}"
        )
    if options.get("queue") is not None:
        check_name(options["queue"], "queue")
    if options.get("key", "") != "":
        check_name(options["key"], "key")
    if options.get("version") is not None:
        check_version(options["version"])
    retry = options.get("retry")
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidInput(f"retry={retry!r} must be a Retry(...)")
    check_tags(options.get("tags", {}), count=count)
    check_headers(options.get("headers", {}))


def check_tags(tags: object, *, count: bool = True) -> Mapping[str, str]:
    """Raises InvalidInput. `count`: also when they are too many, or one is too long."""
    if not isinstance(tags, Mapping) or not all(isinstance(text, str) for pair in tags.items() for text in pair):
        raise InvalidInput(f"tags={quoted(tags)} must map strings to strings")
    if any("\x00" in text for pair in tags.items() for text in pair):
        raise InvalidInput(f"tags={quoted(tags)} contain a NUL character: remove it")
    if count:
        check_tag_count(tags)
    return tags


def check_tag_count(tags: Mapping[str, str]) -> None:
    """Raises InvalidInput when they are too many, or one is too long."""
    if len(tags) > MOST_TAGS:
        raise InvalidInput(f"{len(tags):,} tags are too many: a run has at most {MOST_TAGS}; a memo can hold more")
    for name, value in tags.items():
        if not 1 <= len(name) <= _LONGEST_TAG or len(value) > _LONGEST_VALUE:
            raise InvalidInput(
                f"tag {quoted(name)}={quoted(value)} must have a name of 1 to {_LONGEST_TAG} characters and a value of "
                f"at most {_LONGEST_VALUE:,}: a memo can hold more"
            )


def check_headers(headers: object) -> Mapping[str, str]:
    """Raises InvalidInput."""
    if type(headers) is not dict and not isinstance(headers, Mapping):
        raise InvalidInput(f"headers={quoted(headers)} must map strings to strings")
    try:
        whole = "".join([*headers, *headers.values()])
    except TypeError:
        raise InvalidInput(f"headers={quoted(headers)} must map strings to strings") from None
    if "" in headers:
        raise InvalidInput(f"headers={quoted(headers)} must map strings to strings")
    if "\x00" in whole:
        name = next(name for name, text in headers.items() if "\x00" in name + text)
        raise InvalidInput(f"header {name!r} contains a NUL character: remove it")
    size = len(whole)
    if size > _MOST_HEADERS or (size > _LONGEST_HEADER and max(map(len, headers)) > _LONGEST_HEADER):
        raise InvalidInput(
            f"headers of {size:,} characters ({', '.join(sorted(headers)[:5])}) are too much: they go with everything "
            f"that the run calls; {_MOST_HEADERS:,} in all, {_LONGEST_HEADER} for a name"
        )
    return headers
