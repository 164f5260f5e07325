"""Starts whose id is taken: which run they get, and whether it was started with the same arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

from msgspec import UNSET, DecodeError, Raw, json

from batuta.authoring.backend import Code, RunRef
from batuta.authoring.jobs import Job
from batuta.errors import AlreadyStarted, PayloadSealed, UnknownRun, WrongWorkflow
from batuta.journal.codec_envelope import refuse_coded
from batuta.journal.entries import Body, Entry
from batuta.journal.records import GIVES, IfExists, Message, MessageKind, NewRun, Run, RunKind
from batuta.journal.store import Store

StartOf = Callable[[Run], Awaitable[Entry | Message | None]]
"""The input of a run's chain; None when it is no longer kept."""

_decode = json.Decoder(Body).decode


def check_code(run: Run, code: Code) -> None:
    """Raises WrongWorkflow unless the run is of that workflow or job."""
    kind = RunKind.JOB if isinstance(code, Job) else RunKind.WORKFLOW
    if run.name != code.name or run.kind is not kind:
        raise WrongWorkflow(run.id, run.kind, run.name, kind, code.name)


async def given_run(new: NewRun, run: Run, arguments: Raw | None, start_of: StartOf) -> RunRef:
    """The run that has the id of a start, which gets it. Raises AlreadyStarted, WrongWorkflow."""
    if new.if_exists not in GIVES:
        raise AlreadyStarted(new.id, str(run.state))
    if run.name != new.name or run.kind is not new.kind:
        raise WrongWorkflow(new.id, run.kind, run.name, new.kind, new.name)
    if new.if_exists is IfExists.SAME:
        await _compare(new, run, arguments, start_of)
    return RunRef(run.id, run.run_id, chain_id=run.chain_id, is_new=False)


async def _compare(new: NewRun, run: Run, arguments: Raw | None, start_of: StartOf) -> None:
    """`arguments`: of the start; None: its start message has them."""
    begun = await start_of(run)
    given = digest_of(_arguments(new.start) if arguments is None else arguments)
    existing = None if begun is None else digest_of(_arguments(begun.body))
    if given != existing:
        raise AlreadyStarted.with_others(new.id, str(run.state), given, existing)


def digest_of(arguments: Raw) -> str:
    """A digest of JSON that ignores the order of keys in objects."""
    return hashlib.sha256(json.encode(json.decode(arguments), order="sorted")).hexdigest()


def _arguments(start: str) -> Raw:
    try:
        value = _decode(start).value
    except DecodeError:
        refuse_coded(start, "what the run was started with")
        raise
    return Raw(b"[]") if value is UNSET else value


def start_in(store: Store) -> StartOf:
    """The first inputs of chains of a store."""

    async def start_of(run: Run) -> Entry | Message | None:
        entries = await store.journal(run.chain_id, limit=1)
        if entries:
            return entries[0]
        try:
            stored = await store.load(run.chain_id)
        except UnknownRun:
            return None
        if stored.sealed:
            raise PayloadSealed(stored.sealed)
        if stored.entries:  # it began just now
            return stored.entries[0]
        return next((message for message in stored.messages if message.kind is MessageKind.START), None)

    return start_of
