"""What a check finds, and the rules it goes by."""

from __future__ import annotations

from msgspec import Struct


class Rule(Struct, frozen=True):
    """One rule: what it is about, and what to do instead."""

    title: str
    fix: str
    warning: bool = False
    """Shown, but no reason to fail."""


ACTIVITY = "do it in an activity"

RULES = {
    "W001": Rule("the file cannot be checked", "repair it, or leave it out"),
    "W101": Rule("reads the clock or the time zone of the machine", "use batuta.now(), and name the time zone"),
    "W102": Rule("random numbers of the process", "use batuta.random()"),
    "W103": Rule("a random UUID", "use batuta.uuid()"),
    "W104": Rule("asks the machine or its environment", "use `await batuta.side_effect(lambda: ...)`"),
    "W105": Rule("id() and hash() differ in every process", "use a key of your own"),
    "W106": Rule("a value that was made when the module was imported", "make it in the workflow, from the run"),
    "W107": Rule("blocks the whole worker", "use `await asyncio.sleep(...)`, which is a durable timer"),
    "W201": Rule("files", ACTIVITY),
    "W202": Rule("network or database", ACTIVITY),
    "W203": Rule("logging that speaks in replays, too", "use batuta.logger"),
    "W204": Rule("print() speaks in replays, too", "use batuta.logger", warning=True),
    "W301": Rule("threads, processes, executors or another event loop", ACTIVITY),
    "W302": Rule("subprocesses", ACTIVITY),
    "W303": Rule("asyncio.as_completed gives coroutines in an order by chance", "use batuta.as_completed"),
    "W304": Rule("a task that nobody keeps is dropped when the workflow ends", "keep it and await it", warning=True),
    "W401": Rule(
        "touches the world in a block that also runs when the run only leaves memory",
        "use `except Exception`, or await an activity",
    ),
    "W402": Rule("swallows cancellation and continue_as_new", "catch Exception, or raise again"),
    "W403": Rule("is not awaited: nothing happens", "put `await` before it"),
    "W404": Rule("the order of a set differs in every process", "iterate over sorted(...), or use a dict or list"),
    "W405": Rule("changes what all runs of the process share", "keep state in local variables; publish() shows it"),
    "W406": Rule("reads what changes while the process runs", "pass it in as an argument, or ask an activity"),
    "W501": Rule(
        "an async activity blocks the whole worker",
        "define it with `def` (it then runs in a thread), or await something that does not block",
        warning=True,
    ),
    "W502": Rule(
        "a transactional activity does what its transaction does not hold",
        "do it in another activity: it happens also when this one is rolled back and executed again",
        warning=True,
    ),
    "W503": Rule(
        "a transactional activity ends its transaction by itself",
        "leave that to batuta, which commits it with the result; raise an error to have it rolled back",
    ),
    "W601": Rule(
        "the shape of a workflow was changed without a gate",
        "put the change behind `if patched(...)`, or give it a new version=; --update accepts it as it is",
    ),
    "W602": Rule("a workflow is gone, or has another name", "keep it while it has open runs; --update forgets it"),
    "W603": Rule("the file of shapes is behind the code", "--update writes it", warning=True),
}
"""By code. 1: time, chance, the machine; 2: the world; 3: concurrency; 4: the code itself; 5: activities; 6: shapes."""


class Finding(Struct, frozen=True, kw_only=True, order=True):
    """One place where one rule does not hold. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    code: str
    what: str
    """The culprit, as the code has it."""
    where: str
    """The workflow or activity, and the helper if it is one."""
    details: tuple[str, ...] = ()

    @property
    def rule(self) -> Rule:
        return RULES[self.code]

    def __str__(self) -> str:
        head = f"{self.file}:{self.line}:{self.column}: {self.code} {self.what}: {self.rule.title}"
        return f"{head} ({self.where})" if self.where else head
