"""Dead letters, as the engine makes them: which failed runs are given up, why, and what their errors have in common."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct

from batuta.authoring.deadletters import DeadLetter, as_dead_letter
from batuta.authoring.failures import to_exception
from batuta.authoring.names import readable
from batuta.errors import UnknownLetter
from batuta.ids import RunId
from batuta.journal import letters as rows
from batuta.journal.entries import Body, Command
from batuta.journal.failures import Failure
from batuta.journal.letters import LetterReason, LetterState, NewLetter
from batuta.journal.records import Change, Effects, RunKind
from batuta.journal.store import Store

if TYPE_CHECKING:
    from batuta.authoring.options import ActivityOptions
    from batuta.engine.live import LiveRun

_MARK = "__batuta_call__"
_LONGEST_MESSAGE = 2_000
_LONGEST_COMPARED = 500
_FRAMES = 5
"""Of the code's own, the innermost ones: those count."""


class FailedCall(Struct, frozen=True):
    """An activity that failed for good, and what of the journal came before."""

    seq: int
    name: str
    attempts: int
    entry: int
    """That of its failure."""
    failure: Failure
    reason: LetterReason


def error_of(body: Body, failure: Failure, options: ActivityOptions, entry: int) -> Exception:
    """The error that the code is to meet, which remembers the call that it comes from."""
    error = to_exception(failure)
    call = FailedCall(body.seq, body.name, body.attempts, entry, failure, _reason(failure, options))
    BaseException.__setattr__(error, _MARK, call)  # whatever its class thinks of attributes
    return error


def failed_call(error: BaseException) -> FailedCall | None:
    """The call that the error comes from, unless it is the code's own. Of a group: the member that failed first."""
    found: FailedCall | None = getattr(error, _MARK, None)
    if found is not None or not isinstance(error, BaseExceptionGroup):
        return found
    members = [call for call in map(failed_call, error.exceptions) if call is not None]
    return min(members, key=lambda call: call.entry, default=None)


def _reason(failure: Failure, options: ActivityOptions) -> LetterReason:
    if failure.kind == "Interrupted":
        return LetterReason.INTERRUPTED
    if failure.kind == "ActivityTimeout":
        return LetterReason.TIMED_OUT
    if not failure.retryable or not failure.kinds.isdisjoint(options.retry.never):
        return LetterReason.REFUSED
    return LetterReason.EXHAUSTED


def add_letter(run: LiveRun, outcome: Command) -> None:
    """The run fails: if it is to be a dead letter, the change that closes it says so."""
    if run.is_call and run.parent is not None:
        return  # an activity that was sent here: whoever called it is told
    call, failure = run.machine.failed, outcome.error
    if failure is UNSET or (call is None and not run.is_call and not run.workflow.dead_letter):
        return
    change = run.open_change()
    if change.effects is None:
        change.effects = Effects()
    change.effects.letter = _of_call(call) if call is not None else _of_code(run, failure)
    change.effects.letter.trace = _trace_id(run.machine.start.trace)


def letter_of(run: LiveRun, change: Change, new: NewLetter) -> DeadLetter:
    """The same for people, as far as it is known without asking the store."""
    identity, kind = run.identity, RunKind.JOB if run.is_call else RunKind.WORKFLOW
    return as_dead_letter(
        rows.DeadLetter(
            run_id=identity.run_id,
            id=identity.id,
            kind=kind.value,
            name=run.workflow.name,
            queue=identity.queue,
            state=LetterState.OPEN,
            at=change.entries[-1].at if change.entries else run.machine.at,
            reason=new.reason,
            error=new.error,
            message=new.message,
            fingerprint=new.fingerprint,
            activity=new.activity,
            seq=new.seq,
            attempts=new.attempts,
            keep=new.keep,
            trace=new.trace,
        )
    )


async def find_letter(store: Store, run_id: RunId) -> rows.DeadLetter | None:
    """The dead letter that the run is or was, if it has been one."""
    try:
        return await store.letter(run_id)
    except UnknownLetter:
        return None


def is_open(letter: rows.DeadLetter | None) -> bool:
    """Whether somebody is to look at it: what makes its run go on resolves it, too."""
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


def _of_code(run: LiveRun, failure: Failure) -> NewLetter:
    return NewLetter(
        reason=LetterReason.RAISED,
        error=failure.kind,
        message=_message(failure),
        fingerprint=fingerprint(failure, run.workflow.name),
        attempts=run.machine.start.attempt,
        keep=run.head - 1,
    )


def _message(failure: Failure) -> str:
    return readable(failure.message[:_LONGEST_MESSAGE])


def _trace_id(traceparent: str) -> str:
    parts = traceparent.split("-")
    return parts[1] if len(parts) > 1 else ""


# -- what errors have in common

_QUOTED = re.compile(r"(?<!\w)(?:'[^']*'|\"[^\"]*\"|`[^`]*`)")
_ADDRESS = re.compile(r"(?<!\w)(?:[a-z][a-z0-9+.-]*:/)?/[^\s,;)]+", re.IGNORECASE)
_ID = re.compile(r"[-+]?\b(?=[\w-]*\d)[\w-]+\b")
_FOLDER = re.compile(r"[/\\]")
_SPACE = re.compile(r"\s+")
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+, in (.+)$', re.MULTILINE)
_FOREIGN = re.compile(
    r"[/\\](?:site-packages|dist-packages|python\d+\.\d+)[/\\]|[/\\]batuta[/\\](?:engine|authoring)[/\\]"
)


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
    """File and function of each frame that is neither of the library nor of a package that was installed. Without the
    line and the folder: the next deploy moves both."""
    frames = [(file, name) for file, name in _FRAME.findall(traceback) if not _FOREIGN.search(file)]
    return [f"{_FOLDER.split(file)[-1]}:{name}" for file, name in frames[-_FRAMES:]]
