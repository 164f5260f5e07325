"""The command `pixdict`. What a command needs is imported when it runs: `pixdict --help` stays quick."""

from __future__ import annotations

from typing import Any

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """Run the parts of pixdict, a connector to the Pix key directory (DICT)."""


@root.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=16522, show_default=True, help="0 chooses a free one.")
@click.option("--path", default="directory.db", show_default=True, help="Its SQLite file.")
@click.option("--participant", "participants", multiple=True, help="An ISPB and its category: 12345678:A.")
@click.option("--signature", type=click.Choice(["off", "present", "verify"]), default="off", show_default=True)
@click.option("--certificate", "certificates", multiple=True, help="An ISPB and a PEM file: 12345678=cert.pem.")
@click.option("--refill", type=click.Choice(["stepped", "continuous"]), default="stepped", show_default=True)
@click.option("--check-digits", is_flag=True, help="Refuse a CPF or CNPJ with wrong check digits.")
def directory(**options: Any) -> None:
    """Run a simulator of the central bank's directory.

    It keeps everything in its file: killed and started again, it goes on. Its knobs are at /admin/v1/.
    """
    from pixdict.directory.command import run

    run(**options)


@root.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=8290, show_default=True, help="Of the dashboard.")
@click.option("--folder", type=click.Path(file_okay=False), help="Of its files; without it they are gone at the end.")
@click.option("--category", type=click.Choice(list("ABCDEFGH")), default="A", show_default=True)
def dev(**options: Any) -> None:
    """Run directory, Bridge, monitor, server and dashboard in one process, on SQLite.

    It listens to this machine alone. The page Simulator has the knobs of the directory.
    """
    from pixdict.dev.command import run

    run(**options)


@root.command()
@click.option("--role", type=click.Choice(["bridge", "connect"]), required=True)
@click.option("--store", default="sqlite:///batuta.db", show_default=True, help="The database of Batuta.")
@click.option("--participant", default="12345678", show_default=True, help="bridge: its ISPB.")
@click.option(
    "--directory", default="http://127.0.0.1:16522", show_default=True, help="bridge: where the directory is."
)
@click.option("--listen", default="127.0.0.1:50051", show_default=True, help="bridge: for gRPC.")
@click.option("--redis", help="bridge: a cache in front of kept answers.")
@click.option("--key", help="bridge: a PEM file, to sign with.")
@click.option("--certificate", help="bridge: a PEM file, of that key.")
@click.option("--directory-certificate", help="bridge: a PEM file, to verify answers with.")
@click.option("--bridge", default="127.0.0.1:50051", show_default=True, help="connect: where the Bridge listens.")
@click.option("--database", default="sqlite:///pixdict.db", show_default=True, help="connect: for its own tables.")
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="connect: for Prometheus.")
def serve(**options: Any) -> None:
    """Run one part as a process of its own. Each option may also stand in PIXDICT_SERVE_..."""
    from batuta.errors import BatutaError
    from pixdict.serve import Options, run

    try:
        run(Options(**options))
    except BatutaError as error:
        raise click.ClickException(str(error)) from None


def main() -> None:
    """The console script."""
    root(prog_name="pixdict", auto_envvar_prefix="PIXDICT")
