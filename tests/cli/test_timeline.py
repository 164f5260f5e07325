"""`batuta runs timeline` and `diff`."""

import io
import json
from typing import Any

import msgspec
import pytest
from rich.console import Console

from batuta.authoring.history.timeline import Timeline
from batuta.cli.output.timelines import duration, timeline_view
from tests.cli.conftest import SHOP, Cli, Work, wait_for

OK, FAILED, WRONG, UNKNOWN = 0, 1, 2, 3


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code == OK, result.output
    return json.loads(result.stdout)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_timeline_is_drawn_with_a_bar_for_every_step(cli: Cli, work: Work) -> None:
    work()
    cli("runs", "start", "walk", "--input", "[2, 0.05]", "--id", "w-1", "--wait")
    shown = cli("runs", "timeline", "w-1").stdout
    assert "workflow walk run w-1" in lines(shown)[0]
    assert any(line.startswith("run completed") for line in lines(shown))
    assert len([line for line in lines(shown) if "step done 1" in line and line.endswith("█")]) == 2
    assert "██ running" in shown


def test_a_run_that_waits_says_for_what(cli: Cli) -> None:
    cli("runs", "start", "total", "--id", "t-1", "--delay", "3600")
    cli("runs", "start", "total", "--id", "t-2")
    assert [one["kind"] for one in document(cli, "runs", "timeline", "t-1")["segments"]] == ["delayed"]
    cli("queues", "pause", "default", "--reason", "stocktaking")
    shown = cli("runs", "timeline", "t-2").stdout
    assert "queued" in shown
    assert "stocktaking" in shown or "no live worker" in shown


def test_attempts_that_failed_are_listed_with_their_input(cli: Cli, work: Work) -> None:
    work(f"{SHOP}:alerting")
    cli("jobs", "enqueue", "weigh", "--input", "[-5]", "--id", "j-1")
    wait_for(lambda: document(cli, "jobs", "show", "j-1")["state"] == "failed", "the job to fail")
    found = document(cli, "runs", "timeline", "j-1")
    (call,) = [step for step in found["steps"] if step["kind"] == "activity"]
    assert (call["input"], call["tries"], len(call["attempts"])) == ([-5], 2, 2)
    shown = lines(cli("runs", "timeline", "j-1").stdout)
    assert len([line for line in shown if "1 weigh [-5]" in line and "ValueError: less than nothing" in line]) == 2


def test_two_runs_are_compared_and_a_fork_with_its_origin(cli: Cli, work: Work) -> None:
    work()
    cli("runs", "start", "total", "--input", "[[1, 2]]", "--id", "a", "--wait")
    cli("runs", "start", "total", "--input", "[[1, 5]]", "--id", "b", "--wait")
    shown = cli("runs", "diff", "a", "b").stdout
    assert "they differ from the first step on:" in shown
    assert any(line.startswith("2 add input, output [1,2] -> 3 [1,5] -> 6") for line in lines(shown)), shown
    cli("runs", "fork", "a", "c", "--output", "2=30", "--app", SHOP)
    wait_for(lambda: document(cli, "runs", "show", "c")["state"] == "completed", "the fork to end")
    found = document(cli, "runs", "diff", "c")
    assert (found["left"]["id"], found["right"]["id"], found["same"]) == ("a", "c", 2)
    assert "the first 2 steps are the same, then:" in cli("runs", "diff", "c").stdout
    cli("runs", "start", "total", "--input", "[[1, 2]]", "--id", "d", "--wait")
    assert "no difference in 4 steps" in cli("runs", "diff", "a", "d").stdout


def test_a_run_that_another_goes_on_from_is_named_by_its_run_id(cli: Cli, work: Work) -> None:
    work()
    first = document(cli, "runs", "start", "total", "--input", "[[1, 2]]", "--id", "a", "--wait")["run_id"]
    cli("runs", "reset", "a", "--to", "1")
    second = document(cli, "runs", "show", "a")["run_id"]
    assert first != second
    wait_for(lambda: document(cli, "runs", "show", "a")["state"] == "completed", "the run to end again")
    assert document(cli, "runs", "timeline", "a")["run_id"] == second
    assert document(cli, "runs", "timeline", first)["run_id"] == first
    assert document(cli, "runs", "timeline", first, "--exact")["run_id"] == first
    assert document(cli, "runs", "diff", first, second)["left"]["run_id"] == first


def test_a_bad_timeline_request_is_explained(cli: Cli) -> None:
    cli("runs", "start", "total", "--id", "a")
    cli("runs", "start", "nap", "--id", "b")
    wrong = {
        ("timeline", "nobody"): (UNKNOWN, "no run 'nobody'"),
        ("timeline", "a", "--exact"): (WRONG, "'a' is no run id"),
        ("timeline", "01890a5d-ac96-774b-bcce-b302099a8057", "--exact"): (UNKNOWN, "no run"),
        ("diff", "a", "nobody"): (UNKNOWN, "no run 'nobody'"),
        ("diff", "a", "b"): (WRONG, "'total', and run 'b' of workflow 'nap'"),
        ("diff", "a", "a"): (WRONG, "with itself"),
        ("diff", "a"): (WRONG, "not forked from another"),
    }
    for words, (code, said) in wrong.items():
        result = cli("runs", *words)
        assert (result.exit_code, said in result.stderr) == (code, True), (words, result.stderr)


def test_without_its_key_a_run_shows_what_its_row_says(cli: Cli, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATUTA_KEYS", cli("keys", "new", "k1").stdout.strip())
    work(f"{SHOP}:alerting")
    cli("jobs", "enqueue", "weigh", "--input", "[-5]", "--id", "j-1")
    wait_for(lambda: document(cli, "jobs", "show", "j-1")["state"] == "failed", "the job to fail")
    assert document(cli, "runs", "timeline", "j-1")["sealed"] == ""
    monkeypatch.delenv("BATUTA_KEYS")
    assert "its journal cannot be read here" in cli("runs", "timeline", "j-1").stdout
    assert "k1" in document(cli, "runs", "timeline", "j-1")["sealed"]
    assert "it went through a codec" in cli("runs", "show", "j-1").stdout


def test_bars_fit_the_terminal_and_what_it_can_show(cli: Cli, work: Work) -> None:
    work()
    cli("runs", "start", "walk", "--input", "[2, 0.05]", "--id", "w-1", "--wait")
    found = msgspec.json.decode(cli("runs", "timeline", "w-1", "--json").stdout, type=Timeline)
    found.steps[1].name = "a_step_with_a_name_that_is_longer_than_most_names_are"
    for width, encoding, sign in ((80, "ascii", "#"), (80, "utf-8", "█"), (160, "utf-8", "█")):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
        console = Console(file=out, width=width)
        console.print(timeline_view(found, console))
        out.seek(0)
        shown = out.read().splitlines()
        first = next(place for place, line in enumerate(shown) if line.startswith("step"))
        assert [line.split()[0] for line in shown[first + 1 : first + 5]] == ["run", "1", "2", "3"]  # none is folded
        assert sign in shown[first + 1]
        assert max(map(len, shown[first:])) <= width


def test_of_very_many_steps_the_first_and_the_last_are_shown(cli: Cli, work: Work) -> None:
    work()
    for id, steps in (("w-1", 300), ("w-2", 310)):
        cli("runs", "start", "walk", "--input", f"[{steps}, 0]", "--id", id, "--wait")
    shown = lines(cli("runs", "timeline", "w-1").stdout)
    assert "101 steps between are not shown: use --all, or --json" in shown
    assert len(shown) < 220 < 300 < len(lines(cli("runs", "timeline", "w-1", "--all").stdout))
    shown = lines(cli("runs", "diff", "w-1", "w-2").stdout)
    assert len(shown) < 220
    assert shown[-1].startswith("112 steps more, of which 11 differ, are not shown")
    assert len(lines(cli("runs", "diff", "w-1", "w-2", "--all").stdout)) > 300


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0124, "0.012s"), (9.5, "9.500s"), (59.94, "59.9s"), (125, "2m05s"), (15_000, "4h10m"), (266_400, "3d02h")],
)
def test_durations_are_short(seconds: float, said: str) -> None:
    assert duration(seconds) == said
