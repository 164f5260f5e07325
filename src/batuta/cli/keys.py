"""`batuta keys`: keys that payloads are encrypted with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.common.lazy import FAILED, OK, LazyGroup
from batuta.cli.common.options import (
    REASON,
    Answers,
    CommonOptions,
    json_option,
    opened,
    print_json,
    with_common_options,
)
from batuta.cli.common.redaction import say
from batuta.journal.audit import Verb
from batuta.printable import number_of

if TYPE_CHECKING:
    from batuta.stores.coded.key_rotation import Rotated

keys = LazyGroup(
    "keys",
    {
        "list": ("batuta.cli.keys:list_keys", "List the ids of the keys in BATUTA_KEYS or BATUTA_KEYS_FILE."),
        "new": ("batuta.cli.keys:new", "Make a key."),
        "rotate": ("batuta.cli.keys:rotate", "Encrypt existing payloads with the first key."),
    },
    help="Make, list and rotate payload encryption keys. They come from BATUTA_KEYS or the file BATUTA_KEYS_FILE.",
)


@click.command()
@click.argument("id", metavar="ID")
@click.option("--file", metavar="PATH", help="Append it to this file, made with mode 600; print nothing.")
@json_option
def new(id: str, file: str | None, as_json: bool) -> None:
    """Make a key with this ID, and print it in the form of BATUTA_KEYS.

    Store it where you keep secrets: Batuta does not.
    """
    from batuta.codecs import Keys

    if file is not None:
        Keys.add_to(file, id)
        if as_json:
            print_json({"id": id, "file": file})
        return
    key = Keys.new(id)
    Answers(as_json).show_secret({"id": id, "key": key}, key)


@click.command("list")
@json_option
def list_keys(as_json: bool) -> None:
    """List the ids of the keys, the encrypting one first, with a word that tells keys of the same id apart."""
    from batuta.codecs import Keys

    found = Keys.from_env()
    rows = [] if found is None else [{"id": key.id, "check": key.check} for key in found.all.values()]
    plain = found is not None and found.plain

    def human(_: Any) -> None:
        for place, row in enumerate(rows):
            say(f"{row['id']}  {row['check']}  {'decrypts' if place else 'encrypts and decrypts'}")
        if found is None:
            say("payloads are not encrypted: neither BATUTA_KEYS nor BATUTA_KEYS_FILE is set")
        if plain:
            say("plain: unencrypted payloads are accepted, too")

    Answers(as_json).answer({"keys": rows, "plain": plain}, human)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only count what would be encrypted.")
@REASON
@with_common_options
def rotate(common: CommonOptions, dry_run: bool, reason: str) -> None:
    """Encrypt the payloads of closed runs, schedules, flows and messages with the first key. Open runs are left alone.

    It may run beside workers, and you can stop and repeat it. Exits 1 while some payloads need another key: do not
    remove that key yet.
    """
    done = asyncio.run(_rotate(common, dry_run, reason))
    left = done.open + done.sealed + (sum(done.written.values()) if dry_run else 0)
    document = {"dry_run": dry_run, "left": left} | {name: getattr(done, name) for name in done.__struct_fields__}
    common.answer(document, lambda _console: _show(done, dry_run=dry_run))
    raise SystemExit(FAILED if left else OK)


async def _rotate(common: CommonOptions, dry_run: bool, reason: str) -> Rotated:
    from batuta.codecs import Keys
    from batuta.engine.backend.actor import Actor
    from batuta.stores.coded.key_rotation import rotate as encrypt_anew

    keys = Keys.from_env()
    act = Actor().act(Verb.ROTATE_KEYS, reason, detail={"keys": [] if keys is None else list(keys.all)})
    async with opened(common.store()) as store:
        return await encrypt_anew(store, act, dry_run=dry_run)


def _show(done: Rotated, *, dry_run: bool) -> None:
    verb = "would be encrypted" if dry_run else "were encrypted"
    shown = {name.replace("_", " "): count for name, count in done.written.items()}
    others = "".join(f", {count} {name}" for name, count in shown.items() if name not in ("runs", "schedules"))
    runs, schedules = number_of(done.runs, "run"), number_of(done.schedules, "schedule")
    say(f"{runs}: {done.rewritten} and {schedules}{others} {verb} anew")
    if done.open:
        waiting = number_of(done.open, "open run needs", "open runs need")
        say(f"{waiting} another key, skipped: run it again when closed")
    if done.sealed:
        say(
            f"{done.sealed} were skipped because they cannot be read: their keys are missing here, or they were changed"
        )
