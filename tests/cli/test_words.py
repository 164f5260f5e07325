"""One word for each thing, in every command: --reason, --since and --until, --name, --app, delete, ids and run ids."""

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest

from batuta.cli import root
from batuta.durations import human_duration, parse_duration, short_duration, typed_duration
from tests.cli.conftest import Cli, Work, wait_for

OK, FAILED, USAGE, NOT_FOUND = 0, 1, 2, 3


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code == OK, result.stderr
    return json.loads(result.stdout)


def commands(command: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, *words, name)


OPTIONS = {
    path: {opt for param in command.params if isinstance(param, click.Option) for opt in param.opts}
    for path, command in commands(root)
}


@pytest.mark.parametrize(
    "old",
    [
        "--note",
        "--why",
        "--created-after",
        "--created-before",
        "--after",
        "--before",
        "--workflow",
        "--job",
        "--module",
    ],
)
def test_no_command_has_an_old_word(old: str) -> None:
    assert [path for path, options in OPTIONS.items() if old in options] == []


def test_no_command_removes_by_another_word_than_delete() -> None:
    assert not [path for path in OPTIONS if path.split()[-1] in {"drop", "clear", "remove", "rm", "forget"}]
    assert not [path for path in OPTIONS if path.startswith("letters")]


def test_code_is_never_an_argument() -> None:
    takes_code = {path for path, options in OPTIONS.items() if "--app" in options}
    assert {
        "dev",
        "worker",
        "replay",
        "verify",
        "runs query",
        "runs fork",
        "runs reset",
        "dead-letters reprocess",
    } == takes_code


CHANGES = {
    "delete",
    "drop",
    "create",
    "update",
    "set",
    "enable",
    "disable",
    "rotate",
    "revoke",
    "limit",
    "reset",
    "open",
}
CHANGES |= {"close", "off", "on", "pause", "resume", "publish", "push", "cancel", "terminate", "retry", "resend"}


@pytest.mark.parametrize("group", ["partners", "bus", "flows", "webhooks", "api-keys", "queues", "quotas", "schedules"])
def test_what_changes_something_for_all_takes_a_reason(group: str) -> None:
    words = {path for path in OPTIONS if path.split()[0] == group and path.split()[-1] in CHANGES}
    assert words
    assert {path for path in words - {"bus publish"} if "--reason" not in OPTIONS[path]} == set()


def test_times_are_durations_and_never_numbers_of_seconds() -> None:
    seconds = [
        f"{path} {param.name}"
        for path, command in commands(root)
        for param in command.params
        if "seconds" in f"{param.name} {param.metavar} {getattr(param, 'help', '')}".lower()
    ]
    assert seconds == []


def test_no_argument_has_the_word_of_an_option_that_means_something_else() -> None:
    clashing = [
        path
        for path, command in commands(root)
        if {param.metavar for param in command.params if isinstance(param, click.Argument)} & {"URL", "NAMESPACE"}
    ]
    assert clashing == []


def test_every_option_has_help_or_says_its_choices() -> None:
    silent = [
        f"{path} {param.opts[-1]}"
        for path, command in commands(root)
        for param in command.params
        if isinstance(param, click.Option) and not param.help and not isinstance(param.type, click.Choice)
    ]
    assert silent == []


@pytest.mark.parametrize("words", [("1h",), ("90 min",), ("2d",), ("2001-01-01",), ("2001-01-01T10:00:00+02:00",)])
def test_since_takes_a_time_or_how_long_ago(cli: Cli, words: tuple[str]) -> None:
    cli("runs", "start", "x", "--id", "x-1")
    assert document(cli, "runs", "count", "--since", *words) == {"count": 1}
    assert document(cli, "runs", "count", "--until", *words) == {"count": 0}
    assert [run["id"] for run in document(cli, "runs", "list", "--since", *words)["runs"]] == ["x-1"]
    assert document(cli, "jobs", "count", "--since", *words) == {"count": 0}
    assert document(cli, "dead-letters", "count", "--since", *words) == {"count": 0}
    assert document(cli, "audit", "list", "--since", *words)["rows"] == []


@pytest.mark.parametrize("command", ["runs list", "runs count", "jobs list", "dead-letters list", "audit list"])
@pytest.mark.parametrize("text", ["soon", "1 fortnight", "-1h", "1h2"])
def test_a_time_that_is_none_says_how_times_are_written(cli: Cli, command: str, text: str) -> None:
    cli("migrate")
    result = cli(*command.split(), "--since", text)
    assert (result.exit_code, result.stdout) == (USAGE, "")
    assert "write 1h, 30min or 2d" in result.stderr


def test_runs_jobs_and_dead_letters_are_counted(cli: Cli) -> None:
    for number in range(3):
        cli("runs", "start", "a" if number else "b", "--id", f"n-{number}")
        cli("jobs", "enqueue", "send")
    assert cli("runs", "count").stdout == "3\n"
    assert cli("runs", "count", "--name", "a").stdout == "2\n"
    assert document(cli, "runs", "count", "--kind", "any") == {"count": 6}
    assert document(cli, "jobs", "count", "--name", "send", "--state", "pending") == {"count": 3}
    assert document(cli, "jobs", "count", "--name", "a") == {"count": 0}


def test_a_run_is_named_by_its_id_or_its_run_id(cli: Cli, work: Work) -> None:
    work()
    ended = json.loads(cli("runs", "start", "total", "--input", "[[1, 2]]", "--id", "t-1", "--wait", "--json").stdout)
    run_id = ended["run_id"]
    for words in (["show"], ["journal"], ["journal", "--export"], ["timeline"], ["published"]):
        assert (
            document(cli, "runs", words[0], "t-1", *words[1:]).keys()
            == document(cli, "runs", words[0], run_id, *words[1:]).keys()
        )
    assert document(cli, "runs", "show", run_id)["id"] == "t-1"
    again = document(cli, "runs", "reset", run_id, "--to", "1")["run_id"]
    assert again != run_id
    assert document(cli, "runs", "diff", again, run_id)["left"]["id"] == "t-1"
    job = document(cli, "jobs", "enqueue", "send", "--id", "j-1", "--delay", "1h")["run_id"]
    for command in ("show", "attempts"):
        assert document(cli, "jobs", command, job)["run_id"] == job
    assert document(cli, "jobs", "cancel", job, "--reason", "enough")["requested"] == "cancel"
    paused = document(cli, "runs", "start", "nap", "--input", "3600", "--id", "n-1", "--delay", "1h")["run_id"]
    for command in ("pause", "resume", "signal", "cancel"):
        more = ["go"] if command == "signal" else []
        assert cli("runs", command, paused, *more).exit_code == OK
    assert {row["target"] for row in document(cli, "audit", "list", "--target", paused)["rows"]} == {"n-1"}
    wait_for(lambda: document(cli, "runs", "show", paused)["state"] == "cancelled", "the run to be cancelled")
    assert cli("runs", "delete", paused, "--yes").exit_code == OK


def test_a_run_id_that_no_run_has_is_not_found(cli: Cli) -> None:
    cli("migrate")
    for command in ("show", "journal", "timeline", "cancel", "pause", "published"):
        result = cli("runs", command, "0198f3b2-0000-7000-8000-000000000000")
        assert result.exit_code == NOT_FOUND, command


def test_the_audit_log_has_the_reason_of_every_act(cli: Cli) -> None:
    cli("migrate")
    cli("schedules", "create", "s", "total", "--every", "1h", "--reason", "r0")
    acts = [
        ("queues", "limit", "q", "--concurrency", "1"),
        ("queues", "pause", "q"),
        ("queues", "resume", "q"),
        ("quotas", "set", "open_runs", "5"),
        ("quotas", "delete", "open_runs"),
        ("retention", "set", "30d"),
        ("retention", "delete"),
        ("schedules", "pause", "s"),
        ("schedules", "resume", "s"),
        ("schedules", "trigger", "s"),
        ("schedules", "backfill", "s", "--since", "3h"),
        ("schedules", "delete", "s"),
    ]
    for number, words in enumerate(acts, start=1):
        assert cli(*words, "--reason", f"r{number}").exit_code == OK, words
    rows = document(cli, "audit", "list")["rows"]
    assert [row["reason"] for row in reversed(rows)] == [f"r{number}" for number in range(len(acts) + 1)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("queues", "limit", "q", "--concurrency", "0"), "--concurrency 0"),
        (("queues", "limit", "q", "--reason", "\0", "--concurrency", "1"), "--reason"),
        (("jobs", "enqueue", "x", "--unique-for", "5s"), "needs --unique:"),
        (("runs", "start", "x", "--timeout", "0"), "--timeout 0"),
        (("quotas", "set", "starts_per_second", "5", "--burst", "0"), "--burst 0"),
        (("retention", "set", "5s"), "KEEP '5s'"),
        (("worker",), "'--app'"),
        (("replay",), "'--app'"),
        (("runs", "query", "x", "y"), "'--app'"),
        (("schedules", "backfill", "s"), "'--since'"),
        (("letters", "list"), "letters"),
    ],
    ids=lambda value: " ".join(value).replace("\0", "") if isinstance(value, tuple) else "",
)
def test_a_mistake_is_told_in_the_words_of_the_command_line(cli: Cli, words: tuple[str, ...], said: str) -> None:
    cli("migrate")
    result = cli(*words)
    assert (result.exit_code, result.stdout) == (USAGE, "")
    assert said in result.stderr


@pytest.mark.parametrize(
    ("seconds", "human", "short", "typed"),
    [
        (0, "0 s", "0s", "0s"),
        (0.25, "0.25 s", "0s", "0.25s"),
        (59, "59 s", "59s", "59s"),
        (90, "1 min 30 s", "1m30s", "90s"),
        (3600, "1 h", "1h00m", "1h"),
        (86_400, "1 day", "1d00h", "1d"),
        (2_592_000, "30 days", "30d00h", "30d"),
        (93_784.5, "1 day 2 h 3 min 4.5 s", "1d02h", "93784.5s"),
    ],
)
def test_durations_are_written_for_people(seconds: float, human: str, short: str, typed: str) -> None:
    assert (human_duration(seconds), short_duration(seconds), typed_duration(seconds)) == (human, short, typed)
    assert parse_duration(typed) == seconds
