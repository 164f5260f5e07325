"""The page "Scenarios" of the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import defstruct

from batuta import Batuta
from batuta.server import Action, Page, Table
from pixdict.scenarios.ledger import Ledger
from pixdict.scenarios.player import Player

_WAIT = 50.0
"""Seconds that the button waits for the end of a play."""


def scenarios_page(player: Player) -> Page:
    """For `dashboard(client, pages=[scenarios_page(player)])`."""
    names = tuple(player.scenarios)
    form = defstruct("Play", [("scenario", Literal[names], names[0])], kw_only=True, forbid_unknown_fields=True)

    async def read(_: Batuta) -> Sequence[Table]:
        newest = [*reversed(player.ledgers.values())]
        last = [part(one) for one in newest[:1] for part in (_proof, _steps, *([_runs] if one.runs else []))]
        return [_table(player), *last, *[_proof(one) for one in newest[1:]]]

    async def play(_: Batuta, given: Any) -> str:
        playing = player.begin(given.scenario)
        await asyncio.wait({playing}, timeout=_WAIT)
        if not playing.done():
            return f"{player.scenarios[given.scenario].title} goes on: see its ledger."
        return playing.result().sentence

    action = Action(
        title="Play",
        form=form,
        act=play,
        danger=True,
        about="Makes something go wrong on this stand, and shows what became of it. One at a time.",
    )
    return Page("Scenarios", "/scenarios", read, actions=[action])


def _table(player: Player) -> Table:
    rows = [
        [
            one.name,
            one.happens,
            one.should,
            "not played yet" if (ledger := player.ledgers.get(one.name)) is None else ledger.verdict,
        ]
        for one in player.scenarios.values()
    ]
    columns = ["Scenario", "What happens", "What should happen", "Last play"]
    return Table(
        title="Scenarios", columns=columns, rows=rows, note="Play makes one happen; pixdict scenarios does so, too"
    )


def _proof(ledger: Ledger) -> Table:
    rows = [
        [line.fact, line.expected, line.seen, "as expected" if line.ok else "NOT as expected"] for line in ledger.lines
    ]
    return Table(
        title=f"Ledger: {ledger.title}",
        columns=["Fact", "Expected", "Seen", "Proof"],
        rows=rows,
        note=f"{ledger.verdict}{': ' if ledger.missing or ledger.failure else ''}{ledger.missing or ledger.failure}"
        + (f", in {ledger.took:.1f} s" if ledger.is_over else ""),
    )


def _steps(ledger: Ledger) -> Table:
    rows: list[list[Any]] = [[f"{seconds:.1f} s", text] for seconds, text in ledger.steps]
    return Table(title=f"Steps: {ledger.title}", columns=["At", "What was done"], rows=rows, note="in order")


def _runs(ledger: Ledger) -> Table:
    rows: list[list[Any]] = [[{"run": id}] for id in ledger.runs]
    return Table(title=f"Runs: {ledger.title}", columns=["Run"], rows=rows, note="each leads to its timeline")
