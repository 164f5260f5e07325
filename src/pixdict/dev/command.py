"""What `pixdict dev` does."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from contextlib import nullcontext
from pathlib import Path

import click

from batuta.server import Page
from pixdict.dev.stand import ISPB, Options, Stand, stand
from pixdict.redaction import guard_logs
from pixdict.scenarios import SCENARIOS, Player, scenarios_page


def run(folder: str | None, options: Options) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="pixdict-") as here:
        path = Path(here)
        try:
            path.mkdir(parents=True, exist_ok=True)
            asyncio.run(_serve(path, options))
        except OSError as error:
            raise click.ClickException(str(error)) from None


async def _serve(folder: Path, options: Options) -> None:
    guard_logs()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, ended.set)
    players: list[Player] = []

    def scenarios(running: Stand) -> list[Page]:
        players.append(Player(running, SCENARIOS))
        return [scenarios_page(players[0])]

    async with stand(folder, options, more=scenarios) as running:
        await running.client.schedules.trigger("monitor-rate-limits-cron")
        for what, where in (
            ("dashboard", running.url),
            ("keys", f"{running.url}/api/v1/keys"),
            ("DICT", f"{running.url}/dict"),
            ("simulator", f"{running.url}/simulator"),
            ("scenarios", f"{running.url}/scenarios"),
            ("metrics", f"{running.url}/metrics"),
            ("directory", f"{running.directory.url}/api/v2/ (participant {ISPB}, category {options.category})"),
            ("bridge", f"{running.bridge.address} (gRPC, with reflection)"),
            ("cache", "Redis or Valkey, over a wire that can be cut" if running.redis_url else "memory"),
            ("files", str(folder)),
        ):
            click.echo(f"{what:<10} {where}")
        click.echo("Ctrl-C ends it")
        await ended.wait()
        await players[0].close()
