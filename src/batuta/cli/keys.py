"""`batuta keys`: keys that payloads are encrypted with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from batuta.cli.lazy import FAILED, OK, LazyGroup
from batuta.cli.place import Place, json_option, placed, print_json

if TYPE_CHECKING:
    from batuta.stores.coded.rotation import Rotated

keys = LazyGroup(
    "keys",
    {
        "list": ("batuta.cli.keys:list_keys", "The keys of BATUTA_KEYS or BATUTA_KEYS_FILE, by id."),
        "new": ("batuta.cli.keys:new", "Make a key."),
        "rotate": ("batuta.cli.keys:rotate", "Encrypt what is there with the first key."),
    },
    help="Keys that payloads are encrypted with. They are read from BATUTA_KEYS, or from the file BATUTA_KEYS_FILE.",
)


@click.command()
@click.argument("id", metavar="ID")
@json_option
def new(id: str, as_json: bool) -> None:
    """Make a key of this ID, and print it as BATUTA_KEYS takes it. Nothing keeps it: keep it where secrets are kept."""
    from batuta.codecs import Keys

    key = Keys.new(id)
    if as_json:
        print_json({"id": id, "key": key}, whole=True)
    else:
        click.echo(key)


@click.command("list")
@json_option
def list_keys(as_json: bool) -> None:
    """The ids of the keys, the one that encrypts first, with a word that tells keys of the same id apart."""
    from batuta.codecs import Keys

    found = Keys.from_env()
    rows = [] if found is None else [{"id": key.id, "check": key.check} for key in found.all.values()]
    if as_json:
        print_json({"keys": rows, "plain": found is not None and found.plain})
        return
    for place, row in enumerate(rows):
        click.echo(f"{row['id']}  {row['check']}  {'decrypts' if place else 'encrypts and decrypts'}")
    if found is None:
        click.echo("payloads are not encrypted: neither BATUTA_KEYS nor BATUTA_KEYS_FILE is set")
    elif found.plain:
        click.echo("plain: what is not encrypted is read, too")


@click.command()
@click.option("--dry-run", is_flag=True, help="Say how much there is to do, and do nothing.")
@placed
def rotate(place: Place, dry_run: bool) -> None:
    """Encrypt what closed runs and schedules hold with the first key. Those that are open are left alone.

    May run beside workers, and may be stopped and run again. Exits 1 while anything is left that needs another key:
    then that key must not be taken away yet.
    """
    done = asyncio.run(_rotate(place, dry_run))
    left = done.open + done.sealed + (done.rewritten + done.schedules if dry_run else 0)
    document = {"dry_run": dry_run, "left": left} | {name: getattr(done, name) for name in done.__struct_fields__}
    place.answer(document, lambda _console: _show(done, dry_run=dry_run))
    raise SystemExit(FAILED if left else OK)


async def _rotate(place: Place, dry_run: bool) -> Rotated:
    from batuta.codecs import Keys
    from batuta.engine.acting import Actor
    from batuta.journal.acts import Verb
    from batuta.stores.coded.rotation import rotate as encrypt_anew

    store, keys = place.store(), Keys.from_env()
    act = Actor().act(Verb.ROTATE_KEYS, detail={"keys": [] if keys is None else list(keys.all)})
    try:
        await store.open()
        return await encrypt_anew(store, act, dry_run=dry_run)
    finally:
        await store.close()


def _show(done: Rotated, *, dry_run: bool) -> None:
    verb = "would be encrypted" if dry_run else "were encrypted"
    click.echo(f"{done.runs} runs: {done.rewritten} and {done.schedules} schedules {verb} anew")
    if done.open:
        click.echo(
            f"{done.open} runs were left alone that are open and need another key: run it again when they are closed"
        )
    if done.sealed:
        click.echo(f"{done.sealed} were left alone that cannot be read: their keys are not here, or they were changed")
