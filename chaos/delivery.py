"""Checks what passes between clients and runs, and between runs: messages, children and chains.

Acknowledged means delivered once: one entry in all journals of the chain, or one unread message while it is open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Protocol

from msgspec import UNSET

from batuta.ids import RunId
from batuta.journal.entries import CommandKind, EntryKind
from batuta.journal.records import MessageKind
from batuta.journal.states import CLOSED, RunState
from chaos.journals import ANSWERS, CHILD_ANSWERS, Journal
from chaos.ledger import Account, Record
from chaos.report import Tally
from chaos.talks import add, note

READS_ALL = (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)
"""Ends before which everything that was acknowledged has been read. Others cut a run off."""


class Verdicts(Protocol):
    """Where complaints go."""

    def complain(self, what: str) -> None: ...
    def lost(self, what: str) -> None: ...
    def twice(self, what: str) -> None: ...


class Chain:
    """All runs of an id, in their order."""

    def __init__(self, journals: list[Journal]) -> None:
        self.journals = sorted(journals, key=_place)
        self.last = next((j for j in self.journals if j.run.state is not RunState.CONTINUED), self.journals[-1])
        self.messages = [
            body.message_id
            for journal in self.journals
            for entry, body in journal.pairs()
            if entry.kind in (EntryKind.SIGNAL, EntryKind.UPDATE)
        ]
        """Those that were read, in the order of the journals."""
        self.read = Counter(self.messages)
        self.unread = {message.message_id for journal in self.journals for message in journal.unread}

    @property
    def reads_all(self) -> bool:
        return self.last.run.state in READS_ALL

    def has(self, message_id: str) -> bool:
        """Whether an acknowledged message is where it may be."""
        if self.read[message_id]:
            return True
        return self.last.run.state not in CLOSED and message_id in self.unread


def _place(journal: Journal) -> tuple[bool, int]:
    """By time of creation; but that of the last one may be earlier, when clocks jump."""
    return journal.run.state is not RunState.CONTINUED, journal.run.created_at


class Delivery:
    """The judgement on one case's messages."""

    def __init__(self, verdicts: Verdicts, tally: Tally, account: Account, journals: dict[RunId, Journal]) -> None:
        self._verdicts, self._tally, self._account, self._journals = verdicts, tally, account, journals
        by_id: dict[str, list[Journal]] = defaultdict(list)
        for journal in journals.values():
            by_id[journal.run.id].append(journal)
        self._chains = {id: Chain(runs) for id, runs in by_id.items()}

    def check(self) -> None:
        self._one_current()
        self._read_once()
        self._signals()
        self._updates()
        self._completions()
        self._sends()
        self._children()
        self._asked_for()
        self._heard()

    # -- chains

    def _one_current(self) -> None:
        for id, chain in self._chains.items():
            going_on = [j for j in chain.journals if j.run.state is not RunState.CONTINUED]
            if len(going_on) != 1 or len({j.run.chain_id for j in chain.journals}) != 1:
                told = [(str(j.run.run_id), str(j.run.state)) for j in chain.journals]
                self._verdicts.twice(f"{id} must have one chain and one current run in it: {told}")
            continued = sum(len(j.commands(CommandKind.CONTINUE)) for j in chain.journals)
            if continued != len(chain.journals) - 1:
                self._verdicts.twice(f"{id} continued {continued} times, and has {len(chain.journals)} runs")

    def _read_once(self) -> None:
        for id, chain in self._chains.items():
            for message, times in chain.read.items():
                if times > 1:
                    self._verdicts.twice(f"{id} read message {message} {times} times")

    # -- from clients

    def _said(self, op: str) -> Iterator[tuple[str, str, list[Record]]]:
        """Run, message and what the history has on it."""
        found: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in self._account.records:
            if record.op == op:
                found[record.key, record.message].append(record)
        for (id, message), records in found.items():
            self._tally.messages += any(record.what == "ok" for record in records)
            self._tally.refused += any(_is_refusal(record) for record in records)
            yield id, message, records

    def _acknowledged(self, id: str, message_id: str, records: list[Record]) -> None:
        chain = self._chains.get(id)
        if not any(record.what == "ok" for record in records):
            return
        if chain is None:
            self._verdicts.lost(f"message {message_id} to {id} was acknowledged, there is no such run")
        elif not chain.has(message_id) and (chain.reads_all or chain.last.run.state not in CLOSED):
            self._verdicts.lost(f"message {message_id} to {id} was acknowledged, and nobody has read it")

    def _signals(self) -> None:
        for id, message, records in self._said("signal"):
            message_id = f"{MessageKind.SIGNAL}:{note.name}:{message}"
            self._acknowledged(id, message_id, records)
            counts = Counter(record.what for record in records)
            refused_only = not counts["ok"] and counts["invoke"] == counts["fail"]
            if refused_only and id in self._chains and self._chains[id].read[message_id]:
                self._verdicts.complain(f"message {message_id} to {id} was refused, and delivered")

    def _updates(self) -> None:
        for id, message, records in self._said("update"):
            message_id = f"{MessageKind.UPDATE}:{add.name}:{message}"
            self._acknowledged(id, message_id, records)
            answers = {record.text for record in records if record.what == "ok"}
            number = int(message.rpartition("-")[2])
            if answers - {repr(number * 10)}:
                self._verdicts.complain(f"update {message} of {id} was answered with {answers}")
            rejected = any(record.what == "rejected" for record in records)
            if rejected and (answers or (id in self._chains and self._chains[id].read[message_id])):
                self._verdicts.complain(f"update {message} of {id} was rejected, and left a trace")

    def _completions(self) -> None:
        """An answer from outside that was acknowledged is the activity's."""
        answers = Counter(
            journal.key(body)
            for journal in self._journals.values()
            for entry, body in journal.pairs()
            if entry.kind is EntryKind.ACTIVITY_DONE and body.message_id.startswith("answer:")
        )
        for id, key, records in self._said("complete"):
            chain = self._chains.get(id)
            acknowledged = any(record.what == "ok" for record in records)
            if acknowledged and (chain is None or (chain.reads_all and not answers[key])):
                self._verdicts.lost(f"the answer to {key} was acknowledged, and {id} has not got it")

    # -- between runs

    def _sends(self) -> None:
        """What a run sent is there once, in the order of sending, or was refused."""
        sent: dict[str, list[str]] = defaultdict(list)
        for journal in self._journals.values():
            words = {body.seq: entry.kind for entry, body in journal.pairs()}
            for command in journal.commands(CommandKind.SEND):
                message_id = f"{journal.key_base}:{command.seq}"
                self._sent(journal, command.to, message_id, words.get(command.seq))
                sent[command.to].append(message_id)
        for to, messages in sent.items():
            mine = set(messages)
            arrived = [one for one in self._chains[to].messages if one in mine] if to in self._chains else []
            senders = {one.rpartition(":")[0] for one in arrived}
            for sender in senders:
                numbers = [int(one.rpartition(":")[2]) for one in arrived if one.rpartition(":")[0] == sender]
                if numbers != sorted(numbers):
                    self._verdicts.complain(f"{to} got the messages of {sender} as {numbers}")

    def _sent(self, journal: Journal, to: str, message_id: str, word: EntryKind | None) -> None:
        chain = self._chains.get(to)
        if word is EntryKind.ACCEPTED:
            self._tally.messages += 1
            if chain is None or (chain.reads_all and not chain.read[message_id]):
                self._verdicts.lost(f"{journal.run.id} sent {message_id} to {to}, and nobody has read it")
        elif word is EntryKind.REFUSED and chain is not None and chain.read[message_id]:
            self._verdicts.complain(f"{to} read {message_id} of {journal.run.id}, which was refused")

    def _children(self) -> None:
        """Each child that was asked for is there once, and its parent has its result."""
        found: dict[tuple[RunId, int], list[Journal]] = defaultdict(list)
        for journal in self._journals.values():
            if journal.run.parent_run_id is not None and journal.run.run_id == journal.run.chain_id:
                found[journal.run.parent_run_id, journal.run.parent_seq].append(journal)
        for parent in self._journals.values():
            words = {body.seq: entry.kind for entry, body in parent.pairs()}
            for command in parent.commands(CommandKind.CHILD, CommandKind.ACTIVITY):
                children = found[parent.run.run_id, command.seq]
                wanted = bool(command.to) and words.get(command.seq) is not EntryKind.REFUSED
                if len(children) != wanted:
                    tell = self._verdicts.twice if len(children) > wanted else self._verdicts.lost
                    tell(f"{parent.run.id} asked for {wanted:d} child at {command.seq}, there are {len(children)}")
                elif wanted:
                    self._result(parent, children[0])

    def _result(self, parent: Journal, child: Journal) -> None:
        told = [b for e, b in parent.pairs() if e.kind in ANSWERS + CHILD_ANSWERS and b.seq == child.run.parent_seq]
        state = parent.run.state
        if state not in (RunState.COMPLETED, RunState.CONTINUED) or child.run.state is not RunState.COMPLETED:
            return
        result = child.bodies[-1].commands[-1].value if child.bodies[-1].commands else UNSET
        values = [b"null" if body.value is UNSET else bytes(body.value) for body in told]
        if values != [b"null" if result is UNSET else bytes(result)]:
            self._verdicts.lost(f"{parent.run.id} has {values} of its child {child.run.id}, which gave {result!r}")

    # -- activities

    def _asked_for(self) -> None:
        """Every attempt, wherever it was executed, has the key of a call that a journal holds. A job that was ended
        from outside while it was at work has none there: its start is written with its own end."""
        calls = {j.key(command) for j in self._journals.values() for command in j.commands(CommandKind.ACTIVITY)}
        calls |= {str(j.run.run_id) for j in self._journals.values() if j.was_cut_short}
        for key in {record.key for record in self._account.effects("begin")} - calls:
            self._verdicts.complain(f"{key} was begun, and no journal has asked for it")
        routed = Counter(j.key_base for j in self._journals.values() if j.is_routed)
        for key, times in routed.items():
            if times > 1:
                self._verdicts.twice(f"{times} runs execute {key}")

    # -- what the code has seen

    def _heard(self) -> None:
        """`listen` has handled every note; `onward` has received the first of them, in order."""
        for id, chain in self._chains.items():
            last = chain.last
            if last.run.name not in ("listen", "onward") or last.run.state is not RunState.COMPLETED:
                continue
            notes = [
                int(bytes(body.value))
                for journal in chain.journals
                for entry, body in journal.pairs()
                if entry.kind is EntryKind.SIGNAL and body.value is not UNSET
            ]
            told = last.result()
            if told != (notes if last.run.name == "listen" else notes[: len(told)]):
                self._verdicts.lost(f"{id} has heard {told}, and was sent {notes}")


def _is_refusal(record: Record) -> bool:
    return record.what == "rejected" or (record.what == "fail" and record.text.startswith("RunClosed"))
