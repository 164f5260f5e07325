"""Compensations of a run: what its sagas would have to undo, and the run that undoes it.

A compensation is a command of the turn that registers it. A saga that fails hands its compensations to a child, which
calls them one after the other. A run that times out does not run its code any more: for that case the child is kept
ready with each turn that changes what is to be undone, and the transaction that closes the run inserts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Raw, json
from msgspec.structs import asdict, replace

from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.definitions import Activity, Workflow
from batuta.authoring.history.compensations import COMPENSATE, Compensation, Registered
from batuta.authoring.workflow.context import ChildOptions, current_runtime
from batuta.engine.machine.children import PendingChild, RelatedRuns
from batuta.engine.machine.core import MachineCore
from batuta.engine.machine.failed_calls import same_origin
from batuta.engine.machine.routing import CallingRuntime
from batuta.errors import CompensationFailed
from batuta.journal.entries import Command, CommandKind
from batuta.journal.records import NewRun, Output, OutputKind, ParentPolicy
from batuta.serde import Codec, decoder_for, encode

_ANYTHING = decoder_for(Any, "the result of a compensation")
_LABELS = decoder_for(list[str], "the result of compensations")
_ABANDON = ChildOptions(policy=ParentPolicy.ABANDON)


class Compensations:
    """The compensations of one run. Made when its code first registers one."""

    __slots__ = ("_at", "_kinship", "_last", "_machine", "waiting")

    def __init__(self, machine: MachineCore, kinship: Callable[[], RelatedRuns]) -> None:
        self._machine, self._kinship = machine, kinship
        self.waiting: dict[int, Compensation] = {}
        """By the command that registered them; those that are neither kept nor handed over."""
        self._last = self._at = 0

    # -- what workflow code asks

    def register(
        self,
        name: str,
        codec: Codec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ActivityOptions,
        undoes: str,
    ) -> int:
        """Have this activity called when the saga fails. Returns the number of its command."""
        machine = self._machine
        machine.check_alive()
        kept = asdict(options)
        del kept["gates"]  # objects of this process: those of the definition are asked where it is called
        data, said = Raw(codec.encode_args(args, kwargs, machine.limit)), Raw(json.encode(kept))
        value = Raw(encode(Registered(data, said, undoes), f"the compensation {name!r}", machine.limit))
        seq = machine.next_seq()
        self._issue(Command(seq, CommandKind.UNDO, name, value))
        self.waiting[seq] = Compensation(seq, name, data, said, machine.key(seq, name), undoes)
        return seq

    def keep(self, seqs: Sequence[int]) -> None:
        """The saga that registered these ended well."""
        self._machine.check_alive()
        for seq in seqs:
            del self.waiting[seq]
        self._issue(Command(self._machine.next_seq(), CommandKind.KEEP, value=Raw(json.encode(list(seqs)))))

    async def run(self, seqs: Sequence[int]) -> list[str]:
        """Call these, the last one first, in a run of their own. Returns their labels; raises what a child raises."""
        machine = self._machine
        machine.check_alive()
        todo = [self.waiting.pop(seq) for seq in reversed(seqs)]
        found: list[str] = await self._kinship().run_child(COMPENSATE, (todo,), _ABANDON, _LABELS)
        return found

    def _issue(self, command: Command) -> None:
        machine = self._machine
        self._last, self._at = command.seq, machine.at
        if self._is_kept_ready:
            machine.add_beyond(command)
        else:
            machine.commands.append(command)

    # -- what the store is to do

    @property
    def _is_kept_ready(self) -> bool:
        """Whether the run can time out."""
        start = self._machine.start
        return bool(start.timeout or start.execution_timeout)

    def child(self) -> NewRun | None:
        """The run that undoes all that waits; None when there is nothing. The same until more is registered."""
        if not self.waiting:
            return None
        machine, todo = self._machine, [self.waiting[seq] for seq in reversed(self.waiting)]
        data = encode((todo,), "the open compensations", machine.limit)
        pending = PendingChild(self._last, machine.child_id(self._last), COMPENSATE, "", data, _ABANDON, self._at)
        return self._kinship().child_run(pending)

    def add_to(self, outputs: list[Output], entry: int) -> None:
        """The same for the store, which has no code, if the run can time out."""
        if not self._is_kept_ready:
            return
        child = self.child()
        value = None if child is None else json.encode(child).decode()
        outputs[:] = [one for one in outputs if one.kind is not OutputKind.COMPENSATION]
        outputs.append(Output(kind=OutputKind.COMPENSATION, name="", ord=entry, at=self._machine.at, value=value))


class CompensationWorkflow(Workflow[..., Any]):
    """The workflow of compensations, which every worker has. `activities`: those of the worker, with their gates."""

    def __init__(self, activities: Mapping[str, Activity[..., Any]] | None = None) -> None:
        known = activities or {}

        async def call(one: Compensation) -> None:
            runtime, activity = cast(CallingRuntime, current_runtime.get()), known.get(one.name)
            gates = () if activity is None else activity.options.gates
            options = replace(json.decode(one.options, type=ActivityOptions), gates=gates)
            await runtime.call_activity(one.name, None, _ANYTHING, one.args, {}, options, key=one.key)

        async def compensate(todo: list[Compensation]) -> list[str]:
            """Call these in their order. What fails for good does not stop the others: it is called once more after
            them. If it fails again, the run fails and is a dead letter, and a reprocessing begins with that call."""
            undone: list[str] = []
            again: list[Compensation] = []
            for one in todo:
                try:
                    await call(one)
                except Exception:  # noqa: BLE001 - whatever it is, it is met again below
                    again.append(one)
                else:
                    undone.append(one.label)
            for place, one in enumerate(again):
                try:
                    await call(one)
                except Exception as error:
                    failed = [other.label for other in again[place:]]
                    raise same_origin(CompensationFailed(str(error), undone, failed), error) from error
                undone.append(one.label)
            return undone

        super().__init__(compensate, COMPENSATE)
        self.fingerprint = "1"  # rises when the code above changes
