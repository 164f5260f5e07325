"""What `pixdict scenarios` does."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from pixdict.dev.stand import Options, stand
from pixdict.scenarios import SCENARIOS, Ledger, Player


def show() -> None:
    """Their names, and what happens in them."""
    for one in SCENARIOS:
        click.echo(f"{one.name:<20} {one.happens}")
        click.echo(f"{'':<20} {one.should}")


def run(names: Sequence[str], options: Options) -> None:
    """Play them in turn, on a stand of their own. Ends with 1 unless all of them are proved."""
    with tempfile.TemporaryDirectory(prefix="pixdict-scenarios-") as folder:
        try:
            proved = asyncio.run(_play(names, options, Path(folder)))
        except OSError as error:
            raise click.ClickException(str(error)) from None
    if not proved:
        raise SystemExit(1)


async def _play(names: Sequence[str], options: Options, folder: Path) -> bool:
    async with stand(folder, options) as running:
        player = Player(running, SCENARIOS)
        proved = True
        for name in names:
            scenario = player.scenarios[name]
            click.echo(f"{scenario.title}\n  {scenario.happens}\n  {scenario.should}\n")
            ledger = await player.begin(name)
            tell(ledger)
            proved = proved and ledger.passed
        return proved


def tell(ledger: Ledger) -> None:
    """The ledger as text."""
    for seconds, text in ledger.steps:
        click.echo(f"  {seconds:6.1f} s  {text}")
    click.echo("")
    for line in ledger.lines:
        seen = line.seen if line.ok else f"{line.seen}, expected: {line.expected}"
        click.echo(f"  {'ok ' if line.ok else 'NOT'}  {line.fact}: {seen}")
    click.echo(f"\n{ledger.sentence} ({ledger.took:.1f} s)\n")
