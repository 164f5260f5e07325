"""Claims of both sides, as runs that live for up to 30 days."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID

from batuta import Signal, Update, handlers_done, logger, now, saga, uuid, wait_until, workflow
from pixdict.connect.keys.activities import FOR_EVER, KeyActivities
from pixdict.connect.keys.entries import REFUSED, once_open
from pixdict.connect.keys.models import (
    COMPENSATED,
    NOT_COMPENSATED,
    AttemptsExhausted,
    ClaimAct,
    Compensated,
    How,
    NewClaim,
    NotCompensated,
)
from pixdict.dict.claims import POSSESSION_PERIOD, Claim, ClaimStatus, ClaimType, ExtendedClaim, Role
from pixdict.dict.entries import Reason
from pixdict.errors import ConstraintViolation, DatabaseTimeout, InvalidArgument, NotFound, Refused

claim_changed = Signal("claim_changed", ExtendedClaim)
"""The claim as the directory has it now; sent by who polls."""
confirm_claim = Update("confirm_claim", str)
"""Donor: the owner agrees. Takes the reason, answers the status."""
act_on_claim = Signal("act_on_claim", ClaimAct)
"""Both sides: what a person wants, as core asks it. The outcome is published."""
cancel_claim = Update("cancel_claim", str)
"""Both sides. Takes the reason, answers the status."""
prove_possession = Signal("prove_possession")
"""Claimer: the new owner has shown that the key is theirs."""

ENDED = (ClaimStatus.CANCELLED, ClaimStatus.COMPLETED)
MARGIN = timedelta(minutes=1)
"""After the end of a period: the directory's clock is not ours."""
_AGAIN = timedelta(minutes=10)
"""Until an act that is due, and that the directory did not take, is tried again."""
CLAIMER_REMINDERS = tuple(timedelta(days=day) for day in (7, 14, 21, 28))
DONOR_REMINDERS = tuple(timedelta(days=day) for day in (1, 3, 6))


_store_claim = KeyActivities.store_claim.with_options(retry=FOR_EVER)
"""Once it is open: then our row must follow."""


class _Watched:
    """A claim that changes by signals and by our own acts: the newest of both counts."""

    def __init__(self, id: str, claim: ExtendedClaim | None = None) -> None:
        self.id, self._claim = id, claim
        self.version = 0
        self._is_overdue = False
        self.is_given_away = False
        claim_changed.handle(self.take)

        def may_end(_: str) -> None:
            if self._claim is not None and self._claim.status in ENDED:
                raise ValueError(f"the claim is {self._claim.status}")

        cancel_claim.handle(validator=may_end)(self.cancel)
        act_on_claim.handle(self.act)
        self.acts: dict[str, Callable[[str], Awaitable[str]]] = {"cancel": self.cancel}
        """What a person may do, by name."""

    @property
    def claim(self) -> ExtendedClaim:
        """As it is known now. It is opened."""
        assert self._claim is not None  # noqa: S101 - see `opened`
        return self._claim

    def opened(self, claim: ExtendedClaim) -> None:
        """The directory has it."""
        self._claim = claim

    def take(self, claim: ExtendedClaim) -> None:
        known = self._claim
        if known is not None and claim.id == known.id and claim.last_modified >= known.last_modified:
            self._claim = claim
            self.version += 1

    async def keep(self, claim: ExtendedClaim) -> str:
        """After an act of ours."""
        self.take(claim)
        await _store_claim(self.id, claim)
        return claim.status

    async def act(self, wanted: ClaimAct) -> None:
        """Do it, and say how it ended: an error must not end the claim."""
        how, problem = How.DONE, ""
        try:
            if self._claim is not None and self._claim.status in ENDED:
                raise Refused(f"ClaimOperationInvalid: the claim is {self._claim.status}")
            if wanted.action not in self.acts:
                raise Refused(f"ClaimOperationInvalid: this side of the claim cannot {wanted.action} it")
            await self.acts[wanted.action](wanted.reason)
        except (InvalidArgument, NotFound) as error:
            how, problem = How.REFUSED, str(error)
        except AttemptsExhausted as error:
            how, problem = How.EXHAUSTED, str(error)
        status = "PENDING" if self._claim is None else self._claim.status
        await KeyActivities.answer_claim_act(self.id, status, problem, wanted.asked, how)

    async def cancel(self, reason: str) -> str:
        await wait_until(lambda: self._claim is not None)  # until it is opened
        request_id = uuid()
        return await self.keep(await once_open(lambda: KeyActivities.cancel(self.claim.id, reason, request_id)))

    async def confirm(self, reason: str) -> str:
        await wait_until(lambda: self.claim.status != ClaimStatus.OPEN)  # until it is acknowledged
        request_id = uuid()
        claim = await once_open(lambda: KeyActivities.confirm(self.claim.id, reason, request_id))
        await self.give_away(claim)
        return await self.keep(claim)

    async def give_away(self, claim: ExtendedClaim) -> None:
        """Our own entry, which the directory has removed: also when our confirmation got no answer."""
        if not self.is_given_away:
            await KeyActivities.give_away(claim)
            self.is_given_away = True

    async def due(self, act: Callable[[], Awaitable[object]]) -> None:
        """Do what the directory's rules want of us by now. It is not given up: after a refusal, which may come of a
        change that we have not heard of, or when the directory was away for all attempts, a person is told once and it
        is tried again later, unless the claim has changed."""
        try:
            await act()
            return
        except (InvalidArgument, NotFound, AttemptsExhausted) as error:
            problem = str(error)
        logger.warning("claim %s: %s", self.id, problem)
        if "PeriodNotEnded" not in problem:
            if not self._is_overdue:
                await KeyActivities.tell_overdue(self.id, problem)
            self._is_overdue = True
            with suppress(InvalidArgument, NotFound, AttemptsExhausted):
                before = self.claim
                self.take(await once_open(lambda: KeyActivities.read_claim(before.id)))
                if self.claim.status != before.status:
                    return
        await self.changes_until(now() + _AGAIN)

    async def changes_until(self, moment: datetime) -> None:
        """Until the claim changes, or that time has come."""
        version = self.version
        try:
            await wait_until(lambda: self.version != version, timeout=max(timedelta(0), moment - now()))
        except TimeoutError:
            pass


@workflow(fails=[*REFUSED, Compensated, NotCompensated])
async def claim_key(new: NewClaim) -> str:
    """The claimer's side. Returns the status at the end: COMPLETED or CANCELLED.

    A claim of ownership is completed once it is confirmed, its completion period is over and possession is proved;
    without proof it is cancelled after 30 days. A portability is completed as soon as it is confirmed.
    """
    watched = _Watched(new.id)
    proved = new.claim.type == ClaimType.PORTABILITY

    def prove() -> None:
        nonlocal proved
        proved = True
        watched.version += 1

    async def proves(_: str) -> str:
        prove()
        return watched.claim.status

    prove_possession.handle(prove)
    watched.acts["prove"] = proves
    watched.opened(await _opened(new))
    begun = now()
    limit = begun + POSSESSION_PERIOD + MARGIN
    reminders = [begun + after for after in CLAIMER_REMINDERS]
    completion_id: UUID | None = None
    while watched.claim.status not in ENDED:
        claim = watched.claim
        completion = begun if claim.completion_period_end is None else claim.completion_period_end + MARGIN
        if proved and claim.status == ClaimStatus.CONFIRMED and now() >= completion:
            completion_id = completion_id or uuid()  # the same one for every call: the new entry's CID is made of it
            await watched.due(functools.partial(_complete, watched, completion_id))
        elif not proved and now() >= limit:
            await watched.due(lambda: watched.cancel(Reason.DEFAULT_OPERATION))
        elif not proved and reminders and now() >= reminders[0]:
            reminders.pop(0)
            await KeyActivities.remind(new.id, Role.CLAIMER, "possession is not proved")
        else:
            times = [completion] if proved and claim.status == ClaimStatus.CONFIRMED else []
            times += [limit, *reminders[:1]] if not proved else []
            await watched.changes_until(min(times, default=now() + POSSESSION_PERIOD))
    await handlers_done()
    if watched.claim.status == ClaimStatus.COMPLETED and completion_id is not None:
        await KeyActivities.take_key(watched.claim, completion_id)
    await _store_claim(new.id, watched.claim)
    return watched.claim.status


async def _opened(new: NewClaim) -> ExtendedClaim:
    """Open the claim there and here, or in neither (the second by cancelling it there)."""
    request_id, undo_id = new.request_id or uuid(), uuid()
    if new.request_id is None:
        await KeyActivities.insert_claim(new.id, Role.CLAIMER, new.claim.key, "PENDING", "", new.claim)
    try:
        claim = await once_open(lambda: KeyActivities.open_claim(new, request_id))
    except (InvalidArgument, NotFound) as error:
        await KeyActivities.fail_claim(new.id, str(error), new.asked)
        raise
    except AttemptsExhausted as error:
        await KeyActivities.answer_claim_act(new.id, "PENDING", str(error), new.asked, How.EXHAUSTED)
        raise
    taken: Refused | None = None
    undo = saga()
    try:
        async with undo:
            undo(KeyActivities.undo_claim, new.id, claim.id, undo_id, new.asked)
            try:
                await KeyActivities.store_claim(new.id, claim, new.asked)
            except Refused as error:  # another request of ours has it: nothing is to be undone
                taken = error
    except (DatabaseTimeout, ConstraintViolation) as error:
        if undo.failed:
            await KeyActivities.answer_claim_act(new.id, "PENDING", NOT_COMPENSATED, new.asked, How.EXHAUSTED)
            raise NotCompensated(NOT_COMPENSATED) from error
        raise Compensated(COMPENSATED) from error
    if taken is not None:
        await KeyActivities.fail_claim(new.id, str(taken), new.asked)
        raise taken
    return claim


async def _complete(watched: _Watched, request_id: UUID) -> None:
    """The key is ours, there. In our own table it is at the end, also when the answer was lost."""
    watched.take(await once_open(lambda: KeyActivities.complete(watched.claim.id, request_id)))


@workflow(fails=REFUSED)
async def answer_claim(claim: ExtendedClaim) -> str:
    """The donor's side of a claim for one of our keys. Returns the status at the end.

    The owner is reminded and may confirm or cancel. Silence gives a key away (ownership) or keeps it (portability) once
    the resolution period is over.
    """
    id = f"donor-{claim.id}"
    watched = _Watched(id, claim)

    def is_undecided(_: str) -> None:
        if watched.claim.status not in (ClaimStatus.OPEN, ClaimStatus.WAITING_RESOLUTION):
            raise ValueError(f"the claim is {watched.claim.status}")

    confirm_claim.handle(validator=is_undecided)(watched.confirm)
    watched.acts["confirm"] = watched.confirm
    insert = KeyActivities.insert_claim.with_options(retry=FOR_EVER)
    await insert(id, Role.DONOR, claim.key, claim.status, str(claim.id), claim_of(claim))
    begun = now()
    reminders = [begun + after for after in DONOR_REMINDERS]
    silence = claim.resolution_period_end + MARGIN
    while watched.claim.status not in ENDED:
        if watched.claim.status == ClaimStatus.OPEN:
            await watched.due(lambda: _acknowledge(watched))
        elif watched.claim.status == ClaimStatus.CONFIRMED:
            await watched.give_away(watched.claim)
            await watched.changes_until(begun + 2 * POSSESSION_PERIOD)
        elif now() >= silence:
            await watched.due(lambda: _by_silence(watched))
        elif reminders and now() >= reminders[0]:
            reminders.pop(0)
            await KeyActivities.remind(id, Role.DONOR, "the owner has not answered")
        else:
            await watched.changes_until(min([silence, *reminders[:1]]))
    await handlers_done()
    if watched.claim.status == ClaimStatus.COMPLETED:
        await watched.give_away(watched.claim)
    await _store_claim(id, watched.claim)
    return watched.claim.status


async def _acknowledge(watched: _Watched) -> None:
    request_id = uuid()
    await watched.keep(await once_open(lambda: KeyActivities.acknowledge(watched.claim.id, request_id)))


async def _by_silence(watched: _Watched) -> None:
    if watched.claim.type == ClaimType.OWNERSHIP:
        await watched.confirm(Reason.DEFAULT_OPERATION)
    else:
        await watched.cancel(Reason.DEFAULT_OPERATION)


def claim_of(claim: ExtendedClaim) -> Claim:
    """What was asked for."""
    return Claim(
        type=claim.type,
        key=claim.key,
        key_type=claim.key_type,
        claimer_account=claim.claimer_account,
        claimer=claim.claimer,
    )
