"""Changing the code of runs that are under way."""

from __future__ import annotations

from batuta.authoring.workflow.context import runtime_for
from batuta.names import check_name


def patched(id: str) -> bool:
    """Whether this run takes the new way at a change that is called `id`.

    True in runs that come here for the first time with the new code, and in every replay of them; False in runs that
    had passed this place before. The first answer holds for the run's life.
    """
    return runtime_for("patched()").patched(check_name(id, "patch id"), deprecated=False)


def deprecate_patch(id: str) -> None:
    """Replaces `patched(id)` once no run needs the old path: new runs write no marker, old ones replay."""
    runtime_for("deprecate_patch()").patched(check_name(id, "patch id"), deprecated=True)
