"""The plan of the benchmark, its bars, and whose figures are whose."""

import argparse
from typing import cast

import pytest

from bench.__main__ import Bench, sorted_out
from bench.__main__ import arguments as parse_arguments
from bench.bars import read_bars
from bench.places import Places, StoreKind
from bench.plan import Part, plan


class Watched(Bench):
    """Measures nothing, and says what it would."""

    def __init__(self) -> None:
        options = argparse.Namespace(systems=["batuta", "dbos"], stores=["pg", "sqlite"], full=False)
        super().__init__(cast("Places", None), options)
        self.measured: list[tuple[str, StoreKind]] = []

    def _measure(self, part: Part, store: StoreKind) -> None:
        self.measured.append((f"{part.workload} {part.system}", store))


def test_fewer_rounds_are_spread_over_those_of_the_group() -> None:
    bench = Watched()
    bench.run((Part("W2", "batuta", rounds=5), Part("W4", "batuta", rounds=3), Part("W4", "dbos", rounds=1)))
    names = [name for name, store in bench.measured if store == "pg"]
    assert names == [
        *("W2 batuta", "W4 batuta", "W4 dbos"),
        "W2 batuta",
        *("W2 batuta", "W4 batuta"),
        "W2 batuta",
        *("W2 batuta", "W4 batuta"),
    ]


def test_figures_go_to_the_workload_and_the_system_that_they_name() -> None:
    part = Part("W1", "batuta", also="W3")
    named = {"W1/batuta/ms_per_step": 0.4, "W1/limit/ms_per_step": 0.3, "W3/batuta/p50_ms": 1.0}
    assert list(sorted_out(part, named)) == [
        ("W1", "batuta", {"ms_per_step": 0.4}),
        ("W1", "limit", {"ms_per_step": 0.3}),
        ("W3", "batuta", {"p50_ms": 1.0}),
    ]
    assert list(sorted_out(part, {"ms": 1.0})) == [("W1", "batuta", {"ms": 1.0}), ("W3", "batuta", {"ms": 1.0})]


@pytest.mark.parametrize("full", [False, True])
def test_every_bar_is_about_what_is_measured(full: bool) -> None:
    parts = [part for group in plan(full) for part in group]
    there = {f"{workload}/{part.system}" for part in parts for workload in (part.workload, part.also)}
    for bar in read_bars():
        for path in filter(None, (bar.value, bar.over)):
            assert path.startswith("import/") or path.rpartition("/")[0].rpartition("-")[0] in there, bar.name


def test_a_ratio_is_one_also_where_it_was_measured_as_such() -> None:
    ratios = {bar.value for bar in read_bars() if bar.is_ratio}
    assert {"W1/batuta-pg/over_commit", "W2/batuta-pg/steps_per_s", "W2-around/batuta-pg/on_over_off"} <= ratios
    assert "W4/batuta-pg/wall_s" not in ratios


@pytest.mark.parametrize("arguments", [["--only", "W33"], ["--stores", "postgresql"], ["--systems", "batuta,dbos2"]])
def test_an_unknown_name_is_refused_with_the_known_ones(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    with pytest.raises(SystemExit):
        parse_arguments()
    said = capsys.readouterr().err
    assert f"{arguments[0]}: {arguments[1].split(',')[-1]}: not one of " in said


def test_a_workload_measured_with_another_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--only", "W3"])
    assert parse_arguments().only == {"W3"}
