"""The command `pixdict`. What a command needs is imported when it runs: `pixdict --help` stays quick."""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """Run the parts of pixdict, a connector to the Pix key directory (DICT)."""


def main() -> None:
    """The console script."""
    root(prog_name="pixdict")
