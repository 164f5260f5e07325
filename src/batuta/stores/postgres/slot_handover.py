"""Jobs end, and the next ones take their places, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from asyncpg import Record
from msgspec import json

from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.ids import RunId
from batuta.journal.records import Change, Claim, Hint, Refusal, Verdict, WorkerInfo
from batuta.journal.store import Store
from batuta.stores.contract.slot_handover import commit_then_claim
from batuta.stores.postgres.claims import Claims
from batuta.stores.postgres.commits import Commits, lost_of
from batuta.stores.postgres.database import batch_columns
from batuta.stores.postgres.fast.column_encoding import job_texts


class SlotHandover(Commits, Claims):
    """Committing and claiming at once."""

    hands_over = True

    async def hand_over(
        self, worker: WorkerInfo, changes: Sequence[Change], limit: int
    ) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
        texts = None if any(map(batch_columns.reaches_out, changes)) else job_texts(batch_columns.in_order(changes))
        if texts is None:
            return await commit_then_claim(cast(Store, self), worker, changes, limit)
        async with self._pool.session() as session:  # not that of commits, which need not wait for the lock of a queue
            rows = await session.write(
                self._sql["hand_over"],
                self.namespace,
                *texts,
                worker.worker_id,
                worker.queues,
                list(worker.code),
                list(worker.code.values()),
                limit,
                self._turns_of(worker.queues) if self._rotations else None,
                replied=self._handed_over,
            )
            try:
                winners, won, due = _ends(rows[0])
                lost = lost_of(changes, winners, won)
                answers = await self._judge(worker.worker_id, changes, lost, session) if lost else {}
                claim, _, more = self._taken(worker, rows[1:])
                await self._fill(session, more)
            except StoreUnavailable as error:  # "nothing was written" would be a lie
                raise OutcomeUnknown(str(error)) from error
        self._held = self._held or claim.held
        left = self._held and len(claim.stored_runs) < len(changes)  # also for code that only others have
        self._announce_ends(changes, answers, Hint(due=due or left))
        return {**answers}, claim

    def _handed_over(self) -> None:
        self._committed()
        self._lose_reply("claim")


def _ends(row: Record) -> tuple[int, list[RunId] | None, bool]:
    news = json.decode(row["news"])
    won = news["won"]
    return news["winners"], None if won is None else [RunId(run_id) for run_id in won], news["due"] or False
