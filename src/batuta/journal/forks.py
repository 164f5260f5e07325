"""A new run that begins with the journal of another."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Attempt, Message, Output, Successor


class Fork(Struct, kw_only=True, gc=False):
    """One run made from another. It takes over kind, priority, tags, memo and flow key.

    Its journal is entries 0 to `keep` of the source, unchanged, and then `entries`; it is waiting, and due after
    `new.delay`. Without any entry it is pending, with `new.start` as its start message. It has no parent, unless it
    replaces an open run in its chain: then it keeps that run's parent, which is not notified.
    """

    source: RunId
    head: int
    """The head that the source must still have; with `id`, it may have gone on."""
    new: Successor
    keep: int = -1
    """The last entry of the source that is copied; -1: none."""
    entries: list[Entry] = field(default_factory=list)
    """Written after them: ord = keep + 1, ..."""
    at: int | None = None
    """The last entry that the two have in common, where that is not `keep`."""
    id: str = ""
    """Begin a new chain under this id, which must be free.

    Empty: the next run of the source's chain, which must be the current one of its id.
    """
    close: Entry | None = None
    """Not with `id`.

    Closes (terminates) the open source with this entry. None: the source must be closed, unless `id` is given, which
    may also fork an open run.
    """
    heard: list[str] = field(default_factory=list)
    """With `close`: unread answers to the source's calls that the plan has considered.

    A later answer must not be lost, and prevents the fork.
    """
    again: list[str] = field(default_factory=list)
    """Messages of the source's chain that the new run reads (again): the same rows become unread, or are copied into a
    new chain.

    Other unread messages of the source's chain, except signals and updates, were for the source only: they are marked
    as read when the new run is the next of that chain. With `close`, a cancel is for the new run, too.
    """
    messages: list[Message] = field(default_factory=list)
    """Put into the inbox, too."""
    attempts: list[Attempt] = field(default_factory=list)
    """Of calls that are pending at the fork."""
    outputs: list[Output] = field(default_factory=list)
    """Published values at that point."""
    memo: str | None = None
    """In place of the source's, where that cannot be copied as it is."""
    letter: bool = False
    """The source's dead letter must be open, and is marked as reprocessed by the new run."""
    children: list[Fork] = field(default_factory=list)
    """Forks of closed children of the source, made in the same transaction as children of this run.

    Each source is the current run of its id; its command and policy are taken over.
    """

    def family(self, parent: RunId | None = None) -> Iterator[tuple[Fork, RunId | None]]:
        """This fork and those made with it, each with its parent, if it gets one."""
        yield self, parent
        for child in self.children:
            yield from child.family(self.new.run_id)
