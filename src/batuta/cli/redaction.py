"""`batuta redaction`: make commands redact in a namespace, whatever the environment."""

from __future__ import annotations

import asyncio

import click

from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, CommonOptions, opened, with_common_options
from batuta.journal.audit import Verb
from batuta.journal.marks import REDACT

redaction = LazyGroup(
    "redaction",
    {
        "off": ("batuta.cli.redaction:off", "Redact only where BATUTA_REDACT is set."),
        "on": ("batuta.cli.redaction:on", "Redact in every command that shows payloads."),
        "show": ("batuta.cli.redaction:show", "Show whether redaction is on for the namespace."),
    },
    help="Redact payloads of a namespace in all commands, also where BATUTA_REDACT is not set.",
)


@click.command()
@REASON
@with_common_options
def on(common: CommonOptions, reason: str) -> None:
    """Redact payloads of the namespace in every command, also where BATUTA_REDACT is not set.

    `--reveal` shows them unredacted, and the audit log records who did.
    """
    asyncio.run(_set(common, reason, required=True))
    _answer(common, required=True)


@click.command()
@REASON
@with_common_options
def off(common: CommonOptions, reason: str) -> None:
    """Redact only where BATUTA_REDACT is set. The audit log records who switched it off."""
    asyncio.run(_set(common, reason, required=False))
    _answer(common, required=False)


@click.command()
@with_common_options
def show(common: CommonOptions) -> None:
    """Show whether redaction is on for the namespace."""
    _answer(common, required=asyncio.run(common.requires_redaction()))


async def _set(common: CommonOptions, reason: str, *, required: bool) -> None:
    from batuta.engine.backend.actor import Actor

    async with opened(common.store()) as store:
        if required:
            await store.set_mark(REDACT, "1", Actor(reason=reason).act(Verb.SET_MARK, after="1"))
        else:
            await store.clear_mark(REDACT, Actor(reason=reason).act(Verb.CLEAR_MARK))


def _answer(common: CommonOptions, *, required: bool) -> None:
    said = "commands redact payloads of this namespace" if required else "BATUTA_REDACT alone decides"
    common.tell({"required": required}, said)
