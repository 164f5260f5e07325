"""What `pixdict dev` does."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from contextlib import nullcontext
from pathlib import Path

import click

from pixdict.dev.stand import ISPB, stand


def run(folder: str | None, port: int, category: str) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="pixdict-") as here:
        path = Path(here)
        path.mkdir(parents=True, exist_ok=True)
        try:
            asyncio.run(_serve(path, port, category))
        except OSError as error:
            raise click.ClickException(str(error)) from None


async def _serve(folder: Path, port: int, category: str) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, ended.set)
    async with stand(folder, port=port, category=category) as running:
        await running.client.schedules.trigger("monitor-rate-limits-cron")
        for what, where in (
            ("dashboard", running.url),
            ("DICT", f"{running.url}/dict"),
            ("simulator", f"{running.url}/simulator"),
            ("metrics", f"{running.url}/metrics"),
            ("directory", f"{running.directory.url}/api/v2/ (participant {ISPB}, category {category})"),
            ("bridge", f"{running.bridge.address} (gRPC, with reflection)"),
            ("files", str(folder)),
        ):
            click.echo(f"{what:<10} {where}")
        click.echo("Ctrl-C ends it")
        await ended.wait()
