"""The command `pixdict`. What a command needs is imported when it runs: `pixdict --help` stays quick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """Run the parts of pixdict, a connector to the Pix key directory (DICT)."""


def _tls(whose: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options of those who show a certificate."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in (
            click.option("--tls-trusted", help=f"{whose}A PEM file, of certificates that the other side may show."),
            click.option("--tls-certificate", help=f"{whose}A PEM file, of that key."),
            click.option("--tls-key", help=f"{whose}A PEM file. Both sides show a certificate then (mutual TLS)."),
        ):
            command = option(command)
        return command

    return add


@root.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65_535), default=16522, show_default=True, help="0 chooses a free one.")
@click.option("--path", default="directory.db", show_default=True, help="Its SQLite file.")
@click.option("--participant", "participants", multiple=True, help="An ISPB and its category: 12345678:A.")
@click.option("--signature", type=click.Choice(["off", "present", "verify"]), default="off", show_default=True)
@click.option("--certificate", "certificates", multiple=True, help="An ISPB and a PEM file: 12345678=cert.pem.")
@click.option("--refill", type=click.Choice(["stepped", "continuous"]), default="stepped", show_default=True)
@click.option("--check-digits", is_flag=True, help="Refuse a CPF or CNPJ with wrong check digits.")
@_tls()
def directory(tls_key: str | None, tls_certificate: str | None, tls_trusted: str | None, **options: Any) -> None:
    """Run a simulator of the central bank's directory.

    It keeps everything in its file: killed and started again, it goes on. Its knobs are at /admin/v1/.
    """
    from pixdict.directory.command import run, tls_of

    run(**options, tls=tls_of(tls_key, tls_certificate, tls_trusted))


def _servers(command: Callable[..., None]) -> Callable[..., None]:
    """Options of those who run everything in one process."""
    for option in (
        click.option("--open-for", type=click.FloatRange(0, 3600, min_open=True), default=15.0, show_default=True,
                     help="Seconds that the breaker stays open."),
        click.option("--wait", type=click.FloatRange(0, 60), default=3.0, show_default=True,
                     help="Seconds that a request waits for its outcome before it gets 202."),
        click.option("--replica", help="PostgreSQL: where rows are read while the store is away."),
        click.option("--redis", help="redis://...; without it a Valkey of its own, or else memory."),
        click.option("--bus", help="pulsar://...; without it messages go through the store."),
        click.option("--store", help="postgresql://...; without it an SQLite file."),
    ):  # fmt: skip
        command = option(command)
    return command


@root.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=8290, show_default=True, help="Of the dashboard.")
@click.option("--folder", type=click.Path(file_okay=False), help="Of its files; without it they are gone at the end.")
@click.option("--category", type=click.Choice(list("ABCDEFGH")), default="A", show_default=True)
@_servers
def dev(folder: str | None, **options: Any) -> None:
    """Run all of pixdict in one process: directory, Bridge, connect, core, server and dashboard.

    It listens to this machine alone. The page Simulator has the knobs of the directory, the page Scenarios makes
    things go wrong and shows what became of them.
    """
    from batuta.errors import BatutaError
    from pixdict.dev.command import run
    from pixdict.dev.stand import Options
    from pixdict.errors import DatabaseTimeout

    try:
        run(folder, Options(**options))
    except (BatutaError, DatabaseTimeout) as error:
        raise click.ClickException(str(error)) from None


@root.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "play_all", is_flag=True, help="Play every scenario.")
@_servers
def scenarios(names: tuple[str, ...], play_all: bool, **options: Any) -> None:
    """Make something go wrong on a stand of its own, and print the ledger that shows what became of it.

    Without a name it lists the scenarios. It ends with 1 when a proof fails, or a part that is needed is missing.
    """
    from batuta.errors import BatutaError
    from pixdict.dev.stand import Options
    from pixdict.errors import DatabaseTimeout
    from pixdict.scenarios import SCENARIOS
    from pixdict.scenarios.command import run, show

    known = [one.name for one in SCENARIOS]
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"there is no scenario {unknown[0]!r}: choose one of {', '.join(known)}")
    if not names and not play_all:
        return show()
    try:
        run(known if play_all else names, Options(port=0, **options))
    except (BatutaError, DatabaseTimeout) as error:
        raise click.ClickException(str(error)) from None


@root.command()
@click.option("--role", type=click.Choice(["core", "connect", "bridge", "directory"]), required=True)
@click.option("--store", default="sqlite:///batuta.db", show_default=True, help="The database of Batuta.")
@click.option("--bus", help="pulsar://...; without it messages go through the store.")
@click.option("--redis", help="redis://...: caches, and a faster look at kept answers.")
@click.option("--participant", default="12345678", show_default=True, help="Our ISPB.")
@click.option("--listen", help="HOST:PORT. bridge: for gRPC. core, directory: for HTTP.")
@click.option(
    "--directory", default="http://127.0.0.1:16522", show_default=True, help="bridge: where the directory is."
)
@click.option("--attempts", type=click.IntRange(1, 10), show_default="1, and 3",
              help="bridge: calls of the directory for each call. connect: of the Bridge for each step.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0.1, 120), show_default="5, and 20",
              help="bridge: seconds of a call of the directory. connect: of a call of the Bridge.")  # fmt: skip
@click.option("--bridges", default=1, show_default=True, help="bridge: how many speak for it, this one included.")
@click.option("--open-for", type=click.FloatRange(0.1, 3600), default=60.0, show_default=True,
              help="bridge: seconds for which the breaker stays open.")  # fmt: skip
@click.option("--key", help="bridge: a PEM file, to sign with.")
@click.option("--certificate", help="bridge: a PEM file, of that key.")
@click.option("--directory-certificate", help="bridge: a PEM file, to verify answers with.")
@_tls("bridge, directory: ")
@click.option("--bridge", default="127.0.0.1:50051", show_default=True, help="connect, core: where the Bridge listens.")
@click.option("--database", default="sqlite:///pixdict.db", show_default=True,
              help="connect, core: of monitor and reconciliation; core shows them.")  # fmt: skip
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="connect: for Prometheus.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="connect: where they are served.")
@click.option("--wait", type=click.FloatRange(0, 60), default=25.0, show_default=True,
              help="core: seconds that a request waits for its outcome before it gets 202.")  # fmt: skip
@click.option(
    "--limit", "limits", multiple=True, help="core: in place of a usual one: CreateEntry=1000/min. More than once."
)
@click.option("--replica", help="core: a database where rows are read while the store is away.")
@click.option("--path", default="directory.db", show_default=True, help="directory: its SQLite file.")
def serve(**options: Any) -> None:
    """Run one part as a process of its own. Each option may also stand in PIXDICT_SERVE_..."""
    from batuta.errors import BatutaError
    from pixdict.errors import DatabaseTimeout
    from pixdict.serve import Options, run

    try:
        run(Options(**options))
    except (BatutaError, DatabaseTimeout) as error:
        raise click.ClickException(str(error)) from None


def main() -> None:
    """The console script."""
    root(prog_name="pixdict", auto_envvar_prefix="PIXDICT")
