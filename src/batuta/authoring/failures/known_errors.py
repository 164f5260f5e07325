"""Decides which errors come back as themselves.

A worker knows the modules that were loaded when it opened, and will be again when it reopens. An error of one of them,
or one that its activity declares, is raised again as itself; any other as ActivityFailed. The worker that records the
error decides that once and records the decision. So it does not depend on what the next worker, or this one later, has
imported.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence

from msgspec import UNSET

from batuta.authoring.failures.conversion import STAND_IN, can_be, find_error
from batuta.authoring.failures.error_details import class_name, classes_in, script_name, without
from batuta.errors import InvalidInput
from batuta.journal.failures import Failure

log = logging.getLogger("batuta.engine")

_GROUP = "ExceptionGroup"


class KnownErrors:
    """The error classes that one worker knows."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._modules = frozenset(modules)
        self._told: set[str] = set()

    @classmethod
    def now(cls) -> KnownErrors:
        """The modules that are loaded now."""
        return cls((*sys.modules, script_name()))

    def decide(self, failure: Failure, declared: Sequence[type[Exception]] = (), where: str = "") -> None:
        """Write into a failure, its cause and its members what each is raised as. `declared` are the errors that the
        activity says it raises, `where` names it."""
        for part in (failure.cause, *failure.members):
            if part is not None:
                self.decide(part, declared, where)
        if failure.details is not UNSET:
            strange = {name for name in classes_in(failure.details) if not self._knows(name)}
            if strange:
                failure.details = without(failure.details, strange)
        names = {class_name(one) for one in declared}
        wanted = [failure.raised_as] if failure.raised_as else [failure.type]
        if not failure.raised_as:
            wanted += [base for base in failure.bases if base in names]
        for name in wanted:
            if name == STAND_IN or ((name in names or self._knows(name)) and can_be(failure, name)):
                failure.raised_as = name
                return
        self._warn(failure.type, where)
        failure.raised_as = _GROUP if failure.members else STAND_IN

    def _knows(self, name: str) -> bool:
        module = name.rpartition(":")[0]
        return not module or module in self._modules

    def _warn(self, name: str, where: str) -> None:
        """Once for each class that is there, but was imported too late."""
        if self._knows(name) or name in self._told or find_error(name) is None:
            return
        self._told.add(name)
        module, _, path = name.rpartition(":")
        log.warning(
            "%s raised %s, whose module was imported after this worker opened: it comes back as ActivityFailed. Import "
            "%s at the top of a module, or declare raises=[%s]",
            where or "a run",
            name,
            module,
            path,
        )


def check_raises(errors: object, what: str) -> tuple[type[Exception], ...]:
    """The errors that a definition declares. Raises InvalidInput for what could not be raised again."""
    if not isinstance(errors, Sequence) or isinstance(errors, str | bytes):
        raise InvalidInput(f"raises={errors!r} of {what} must be a list of exception classes")
    for one in errors:
        if not isinstance(one, type) or not issubclass(one, Exception) or issubclass(one, StopIteration):
            raise InvalidInput(
                f"raises= of {what} holds {one!r}: give classes that derive from Exception (a name loads no class)"
            )
    return tuple(errors)


def check_can_be_found(errors: Iterable[type[Exception]], what: str) -> None:
    """Raises InvalidInput for a declared class that another process could not find."""
    for one in errors:
        if find_error(class_name(one)) is not one:
            raise InvalidInput(
                f"{what} declares raises=[{one.__name__}], and module {one.__module__!r} has no such class as "
                f"{one.__qualname__!r}: define it at the top of its module, where a worker finds it after a restart"
            )
