"""Dead letters, as the engine makes them: which failed runs are given up, why, and what their errors have in common."""

from __future__ import annotations

import hashlib
import re

from batuta.authoring.history.compensations import COMPENSATE
from batuta.engine.machine.failed_calls import FailedCall, Origin
from batuta.engine.machine.machine import Machine
from batuta.errors import UnknownLetter
from batuta.ids import RunId, trace_id_of_run
from batuta.journal.bus.messages import DELIVERY
from batuta.journal.dead_letters import DeadLetter, LetterState, open_letter
from batuta.journal.failures import Failure
from batuta.journal.records import LetterReason, NewLetter, RunKind
from batuta.journal.store import Store
from batuta.journal.tracebacks import file_name, own_frames, place_of
from batuta.names import readable

_LONGEST_MESSAGE = 2_000
_LONGEST_COMPARED = 500
_FRAMES = 5
"""How many frames of the user's own code are compared, innermost first."""


_GIVEN_UP = {Origin.CALL, Origin.CODE}
"""Origins of a failure that make the run a dead letter, whatever its definition says."""


def new_letter(machine: Machine, failure: Failure, head: int, *, is_call: bool) -> NewLetter | None:
    """The dead letter of a run that ends with this failure, or None if the run becomes none. `is_call`: the run is a
    job, not a workflow."""
    call = machine.failed
    if not (is_call or machine.workflow.dead_letter or machine.origins & _GIVEN_UP):
        return None
    letter = _of_call(call) if call is not None else _of_code(machine, failure, head, is_call)
    if machine.workflow.name == COMPENSATE:
        letter.reason = LetterReason.COMPENSATION_FAILED
    elif is_call and machine.workflow.name.startswith(DELIVERY):
        letter.reason = LetterReason.UNDELIVERED
    letter.trace = trace_id_of_run(machine.start.trace, machine.identity.chain_id)
    return letter


def letter_of(machine: Machine, at: int, new: NewLetter, kind: RunKind) -> DeadLetter:
    """The same letter as events and clients get it, with the fields that are known without asking the store."""
    identity = machine.identity
    return open_letter(
        new, at, run_id=identity.run_id, id=identity.id, kind=kind, name=machine.workflow.name, queue=identity.queue
    )


async def find_letter(store: Store, run_id: RunId) -> DeadLetter | None:
    """The dead letter that the run is or was, if it has been one."""
    try:
        return await store.letter(run_id)
    except UnknownLetter:
        return None


def is_open(letter: DeadLetter | None) -> bool:
    """Whether it is open. It is resolved when its run goes on."""
    return letter is not None and letter.state is LetterState.OPEN


def _of_call(call: FailedCall) -> NewLetter:
    return NewLetter(
        reason=call.reason,
        error=call.failure.kind,
        message=_message(call.failure),
        fingerprint=fingerprint(call.failure, call.name),
        activity=call.name,
        seq=call.seq,
        attempts=call.attempts,
        keep=call.entry - 1,
    )


def _of_code(machine: Machine, failure: Failure, head: int, is_call: bool) -> NewLetter:
    is_bug = Origin.CODE in machine.origins and not is_call
    place = place_of(failure)
    return NewLetter(
        reason=LetterReason.WORKFLOW_ERROR if is_bug else LetterReason.RAISED,
        error=failure.kind,
        message=_message(failure) + (f" ({place})" if place else ""),
        fingerprint=fingerprint(failure, machine.workflow.name),
        attempts=machine.start.attempt,
        keep=head - 1,
    )


def _message(failure: Failure) -> str:
    return readable(failure.message[:_LONGEST_MESSAGE])


# -- what errors have in common

_QUOTED = re.compile(r"(?<!\w)(?:'[^']*'|\"[^\"]*\"|`[^`]*`)")
_ADDRESS = re.compile(r"(?<!\w)(?:[a-z][a-z0-9+.-]*:/)?/[^\s,;)]+", re.IGNORECASE)
_ID = re.compile(r"[-+]?\b(?=[\w-]*\d)[\w-]+\b")
_SPACE = re.compile(r"\s+")


def fingerprint(failure: Failure, where: str) -> str:
    """The same for errors of the same origin: of one class, from one activity (or workflow), through the same functions
    of its own code, and with the same message but for numbers, ids, paths and what stands in quotes."""
    said = [failure.type, where, normalised(failure.message), *_own_frames(failure.traceback)]
    return hashlib.blake2b("\0".join(said).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def normalised(message: str) -> str:
    """A message without what differs from one run to the next."""
    text = message[:_LONGEST_COMPARED]
    for pattern, sign in ((_QUOTED, "'*'"), (_ADDRESS, "*"), (_ID, "*"), (_SPACE, " ")):
        text = pattern.sub(sign, text)
    return text.strip()


def _own_frames(traceback: str) -> list[str]:
    """File and function of each frame of the user's code. Not the line and the folder: the next deploy moves both."""
    return [f"{file_name(path)}:{name}" for path, _, name in own_frames(traceback)[-_FRAMES:]]
