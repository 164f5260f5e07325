"""The bars: what each figure, or the ratio of two, must reach. They stand in bars.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("bars.toml")

Workloads = Mapping[str, Mapping[str, Mapping[str, object]]]


@dataclass(frozen=True)
class Bar:
    """A figure as "workload/system/figure", over another one if `over` is given, and what it may be."""

    name: str
    value: str
    over: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_ratio(self) -> bool:
        """Of two figures, or one that was taken where they were measured."""
        return bool(self.over) or "over" in self.value.rpartition("/")[2].split("_")

    def measured(self, workloads: Workloads) -> float | None:
        """The figure or ratio, None when it was not measured."""
        value = figure(workloads, self.value)
        if not self.over or value is None:
            return value
        base = figure(workloads, self.over)
        return value / base if base else None

    def spread(self, workloads: Workloads) -> float:
        """How far apart the rounds of its figures are: the largest over the smallest, of the worse figure."""
        return max(_spread(workloads, path) for path in (self.value, self.over or self.value))

    def holds(self, measured: float | None) -> bool:
        """Whether it is reached. What was not measured does not hold."""
        if measured is None:
            return False
        too_much = self.at_most is not None and measured > self.at_most
        too_little = self.at_least is not None and measured < self.at_least
        return not (too_much or too_little)

    def __str__(self) -> str:
        return f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}"


def read_bars(file: Path = FILE) -> list[Bar]:
    return [Bar(**entry) for entry in tomllib.loads(file.read_text())["bar"]]


def figure(workloads: Workloads, path: str) -> float | None:
    """The figure at "workload/system/figure", None when there is none."""
    workload, system, name = path.split("/")
    value = workloads.get(workload, {}).get(system, {}).get(name)
    return float(value) if isinstance(value, int | float) else None


def _spread(workloads: Workloads, path: str) -> float:
    workload, system, name = path.split("/")
    rounds = workloads.get(workload, {}).get(system, {}).get("rounds")
    values = rounds.get(name, []) if isinstance(rounds, Mapping) else []
    return max(values) / min(values) if values and min(values) > 0 else 1.0
