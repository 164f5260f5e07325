"""A new run that begins with what another one has done."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Attempt, Message, Output, Successor


class Fork(Struct, kw_only=True, gc=False):
    """One run made from another. It takes over kind, priority, tags, memo and flow key.

    Its journal is entries 0 to `keep` of the source, as they are, and then `entries`; it is waiting, and due after
    `new.delay`. Without any entry it is pending, with `new.start` as its start message. It has no parent, unless it
    takes the place of an open run in its chain: then it has that one's, which is told nothing.
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
    """Begins a chain of its own under this id, which must be free. Empty: the next run of the source's chain, which
    must be the current one of its id."""
    close: Entry | None = None
    """Not with `id`. The source is open, and is closed (terminated) with this entry. None: it must be closed already,
    unless `id` is given: a chain of its own may be made from an open run, too."""
    heard: list[str] = field(default_factory=list)
    """With `close`: answers to the source's calls that it has not read, and that the plan has looked at. One that came
    later must not be lost, and stands in the way."""
    again: list[str] = field(default_factory=list)
    """What is unread in the source's chain, but for signals and updates, was for the source alone: it is marked as read
    when the new run is the next of that chain. These are
    messages of the source's chain that the new run is to read (again): the same rows become unread, or, in a chain of
    its own, copies of them are put there."""
    messages: list[Message] = field(default_factory=list)
    """Put into the inbox, too."""
    attempts: list[Attempt] = field(default_factory=list)
    """Of calls that are pending at the fork."""
    outputs: list[Output] = field(default_factory=list)
    """What it has published by then."""
    memo: str | None = None
    """In place of the source's, where that cannot be copied as it is."""
    letter: bool = False
    """The source's dead letter must be open, and is marked as reprocessed by the new run."""
    children: list[Fork] = field(default_factory=list)
    """Made with it, or not at all, as its children: of closed children of the source, each the current run of its id,
    whose command and policy they take over."""

    def family(self, parent: RunId | None = None) -> Iterator[tuple[Fork, RunId | None]]:
        """This one and those that are made with it, each with its parent, if it gets one."""
        yield self, parent
        for child in self.children:
            yield from child.family(self.new.run_id)
