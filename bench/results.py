"""The figures of one run of the benchmark: collected, summed up, written and shown."""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.bars import Bar
from bench.child import Figures

FILE: Final = Path(__file__).parent / "results" / "latest.json"
WORST: Final = frozenset(
    {
        "durable_done_again",
        "neither_in_flight_nor_lost",
        "early",
        "not_once",
        "deadlocks",
        "most_at_once",
        "most_of_a_key",
    }
)
"""Figures that must never happen: not the median counts, but the worst."""

NOISY: Final = 2.0
"""Rounds that differ by more were not measured on a quiet machine: the verdict is worth little, either way."""


class Results:
    """Figures by workload and system, one of each round."""

    def __init__(self) -> None:
        self._rounds: dict[str, dict[str, list[Figures]]] = defaultdict(lambda: defaultdict(list))
        self.failures: list[str] = []
        """Rounds that gave no figures: a median of the others would hide a hang."""

    def add(self, workload: str, system: str, figures: Figures) -> None:
        self._rounds[workload][system].append(figures)

    def fail(self, workload: str, system: str, error: Exception) -> None:
        self.failures.append(f"{workload} {system}: {type(error).__name__}")

    def count(self, workload: str, system: str) -> int:
        return len(self._rounds[workload][system])

    def workloads(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The median of each figure, with every round beside it."""
        return {
            workload: {system: _summary(rounds) for system, rounds in systems.items() if rounds}
            for workload, systems in self._rounds.items()
        }


def _summary(rounds: Sequence[Figures]) -> dict[str, Any]:
    by_name = {name: [figures[name] for figures in rounds] for name in rounds[0]}
    summary: dict[str, Any] = {name: _short(_sum_up(name, values)) for name, values in by_name.items()}
    summary["rounds"] = {name: [_short(value) for value in values] for name, values in by_name.items()}
    return summary


def _sum_up(name: str, values: Sequence[float]) -> float:
    return max(values) if name in WORST else statistics.median(values)


def _short(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 10_000 else round(value)


def write(results: Results, machine: Mapping[str, object], bars: Sequence[Bar], file: Path = FILE) -> None:
    """Write latest.json."""
    workloads = results.workloads()
    measured = {bar.name: bar.measured(workloads) for bar in bars if bar.is_ratio}
    ratios = {name: _short(value) for name, value in measured.items() if value is not None}
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        json.dumps(
            {"machine": machine, "workloads": workloads, "ratios": ratios, "failures": results.failures}, indent=1
        )
        + "\n"
    )


def table(results: Results) -> str:
    """All medians, a line per workload and system."""
    lines = []
    for workload, systems in results.workloads().items():
        for system, summary in sorted(systems.items()):
            figures = "   ".join(f"{name} {value:,g}" for name, value in summary.items() if name != "rounds")
            rounds = len(next(iter(summary["rounds"].values())))
            lines.append(f"{workload:<12} {system:<15} x{rounds}  {figures}")
    lines += [f"FAILED       {failure}" for failure in results.failures]
    return "\n".join(lines)


def checked(results: Results, bars: Sequence[Bar]) -> tuple[str, bool]:
    """Bar, measured, holds; and whether all of them do and no round failed."""
    workloads = results.workloads()
    width = max(len(bar.name) for bar in bars)
    lines, all_hold = [f"{'':<{width}}  {'bar':>8}  {'measured':>9}  holds"], True
    for bar in bars:
        measured = bar.measured(workloads)
        holds = bar.holds(measured)
        all_hold = all_hold and holds
        shown = "none" if measured is None else f"{_short(measured):,g}"
        spread = bar.spread(workloads)
        noise = f"   noisy: its rounds differ by a factor of {spread:.1f}" if spread > NOISY else ""
        lines.append(f"{bar.name:<{width}}  {bar!s:>8}  {shown:>9}  {'yes' if holds else 'NO':<5}{noise}")
    if results.failures:
        lines.append(f"{len(results.failures)} rounds failed, which no median shows: {'; '.join(results.failures)}")
    return "\n".join(lines), all_hold and not results.failures
