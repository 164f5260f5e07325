"""What people do with dead letters: look, reprocess, discard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from uuid import UUID

from batuta.authoring.deadletters import Named, Reprocess, Reprocessed
from batuta.errors import LetterResolved, UnknownLetter, UnknownRun
from batuta.ids import RunId
from batuta.journal.acts import Act, Verb
from batuta.journal.letters import DeadLetter, GroupPage, LetterFilter, LetterPage, LetterState
from batuta.journal.store import Store

_Letters = list[DeadLetter]
"""Named here: in the class `list` is a verb."""
_BATCH = 500
"""Letters of one transaction."""


class NativeLetters:
    """Implements `authoring.deadletters.LetterBackend` on a store."""

    def __init__(self, store: Store, actor: Callable[[], str]) -> None:
        self._store, self._actor = store, actor

    # -- looking

    async def find(self, id: str) -> DeadLetter:
        with suppress(ValueError, UnknownLetter):
            return await self._store.letter(UUID(id))
        with suppress(UnknownRun, UnknownLetter):
            return await self._store.letter((await self._store.get(id)).run_id)
        cursor = None
        while True:  # the id may have another run by now
            page = await self._store.letters(LetterFilter(states=(), id_prefix=id), cursor, _BATCH)
            for letter in page.letters:
                if letter.id == id:
                    return letter
            if page.cursor is None:
                raise UnknownLetter(id)
            cursor = page.cursor

    async def list(self, where: LetterFilter, cursor: str | None, limit: int) -> LetterPage:
        return await self._store.letters(where, cursor, limit)

    async def groups(self, where: LetterFilter, cursor: str | None, limit: int) -> GroupPage:
        return await self._store.letter_groups(where, cursor, limit)

    async def count(self, where: LetterFilter) -> int:
        return await self._store.count_letters(where)

    # -- discarding

    async def discard(self, which: Named, reason: str, *, dry_run: bool) -> int:
        act = Act(actor=self._actor(), verb=Verb.DISCARD, reason=reason)
        count = 0
        async for letters in self._batches(which, _BATCH):
            if dry_run:
                count += len(letters)
                continue
            discarded = await self._store.discard_letters([letter.run_id for letter in letters], act)
            count += len(discarded)
            if _is_one(which) and not discarded:
                raise await self._why_resolved(letters[0])
        return count

    async def _why_resolved(self, letter: DeadLetter) -> LetterResolved:
        now = await self._store.letter(letter.run_id)
        return LetterResolved(now.id, now.state)

    async def _batches(self, which: Named, size: int) -> AsyncIterator[_Letters]:
        """Open ones of those that are named, from the newest on: what comes meanwhile is not among them.

        Raises LetterResolved of one that is named alone."""
        if not isinstance(which, LetterFilter):
            for first in range(0, len(which), size):
                found = [await self._store.letter(run_id) for run_id in which[first : first + size]]
                letters = [letter for letter in found if letter.state is LetterState.OPEN]
                if _is_one(which) and not letters:
                    raise LetterResolved(found[0].id, found[0].state)
                if letters:
                    yield letters
            return
        cursor = None
        while True:
            page = await self._store.letters(which, cursor, size)
            if page.letters:
                yield page.letters
            if page.cursor is None:
                return
            cursor = page.cursor


def _is_one(which: Named) -> bool:
    return not isinstance(which, LetterFilter) and len(which) == 1
