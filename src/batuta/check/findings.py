"""The findings of a check, and its rules."""

from __future__ import annotations

from msgspec import Struct


class Rule(Struct, frozen=True):
    """One rule: the problem, and what to do instead."""

    title: str
    fix: str
    warning: bool = False
    """Shown, but no reason to fail."""


ACTIVITY = "do it in an activity"

RULES = {
    "W001": Rule("the file cannot be checked", "fix the file, or exclude it"),
    "W101": Rule("reads the clock or the time zone of the machine", "use batuta.now(), and name the time zone"),
    "W102": Rule("uses random numbers of the process", "use batuta.random()"),
    "W103": Rule("makes a random UUID", "use batuta.uuid()"),
    "W104": Rule("reads the machine or its environment", "use `await batuta.side_effect(lambda: ...)`"),
    "W105": Rule("id() and hash() differ between processes", "use your own key"),
    "W106": Rule("uses a value that was computed when the module was imported", "compute it in the workflow"),
    "W107": Rule("blocks the whole worker", "use `await asyncio.sleep(...)`, which is a durable timer"),
    "W201": Rule("uses files", ACTIVITY),
    "W202": Rule("uses the network or a database", ACTIVITY),
    "W203": Rule("logs also in replays", "use batuta.logger"),
    "W204": Rule("print() prints also in replays", "use batuta.logger", warning=True),
    "W301": Rule("uses threads, processes, executors or another event loop", ACTIVITY),
    "W302": Rule("starts subprocesses", ACTIVITY),
    "W303": Rule("asyncio.as_completed yields coroutines in random order", "use batuta.as_completed"),
    "W304": Rule("a task without a reference is dropped when the workflow ends", "keep it and await it", warning=True),
    "W305": Rule(
        "sets of these have a random order",
        "use asyncio.create_task(...) or asyncio.get_running_loop().create_future()",
    ),
    "W401": Rule(
        "has an effect in a block that also runs when the run leaves memory",
        "use `except Exception`, or await an activity",
    ),
    "W402": Rule("swallows cancellation and continue_as_new", "catch Exception, or raise again"),
    "W403": Rule("is not awaited: nothing happens", "put `await` before it"),
    "W404": Rule("the order of a set differs between processes", "iterate over sorted(...), or use a dict or list"),
    "W405": Rule(
        "changes state that all runs of the process share", "keep state in local variables; publish() shows it"
    ),
    "W406": Rule("reads state that changes while the process runs", "pass it in as an argument, or ask an activity"),
    "W501": Rule(
        "an async activity blocks the whole worker",
        "define it with `def` (it then runs in a thread), or await something that does not block",
        warning=True,
    ),
    "W502": Rule(
        "a transactional activity has an effect outside its transaction",
        "do it in another activity: it is not rolled back, and happens again in the next attempt",
        warning=True,
    ),
    "W503": Rule(
        "a transactional activity ends its own transaction",
        "let Batuta commit it with the result; raise an error to roll it back",
    ),
    "W504": Rule(
        "raises an error of a module that is imported only here: workflows get ActivityFailed",
        "import it at the top of the module, or declare it: raises=[...]",
        warning=True,
    ),
    "W601": Rule(
        "the shape of a workflow changed without a gate",
        "put the change behind `if patched(...)`, or give it a new version=; --update accepts it unchanged",
    ),
    "W602": Rule("a workflow was removed or renamed", "keep it while it has open runs; --update forgets it"),
    "W603": Rule("the file of shapes is out of date", "--update writes it", warning=True),
}
"""By code. 1: time, chance, the machine; 2: the world; 3: concurrency; 4: the code itself; 5: activities; 6: shapes."""


class Finding(Struct, frozen=True, kw_only=True, order=True):
    """One place where one rule does not hold. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    code: str
    what: str
    """The culprit, as written in the code."""
    where: str
    """The workflow or activity, and the helper if it is one."""
    details: tuple[str, ...] = ()

    @property
    def rule(self) -> Rule:
        return RULES[self.code]

    def __str__(self) -> str:
        head = f"{self.file}:{self.line}:{self.column}: {self.code} {self.what}: {self.rule.title}"
        return f"{head} ({self.where})" if self.where else head
