"""The page "Reconciliation" of the dashboard: how the last ones ended, what they repaired, and a button for one now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from batuta import Batuta
from batuta.server import Action, Page, Table
from pixdict.connect.reconciliation.audit import Audit
from pixdict.connect.reconciliation.models import Options
from pixdict.connect.reconciliation.workflow import QUEUE, SCHEDULE_ID, reconcile_keys


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """An action without a form."""


class Allowed(Struct, frozen=True, forbid_unknown_fields=True):
    """The share of the rows of a type that may end."""

    retire_share: Annotated[float, Meta(gt=0, le=1)]


def reconciliation_page(audit: Audit, options: Options = Options()) -> Page:
    """For `dashboard(client, pages=[reconciliation_page(audit)])`. `options`: those of the worker."""

    async def read(_: Batuta) -> Sequence[Table]:
        reports = [
            [one.ended_at, one.key_type, one.outcome, one.entries, one.repaired, one.left_over, one.detail or None]
            for one in await audit.reports()
        ]
        changes = [
            [one.at, one.key_type, one.action, one.entry_id, one.before or None, one.run_id]
            for one in await audit.changes()
        ]
        return [
            Table(
                title="Reconciliations",
                columns=["When", "Type", "Outcome", "Entries", "Repaired", "Left", "Why"],
                rows=reports,
                note="newest first" if reports else "There was none yet: it runs every night at three.",
            ),
            Table(
                title="Repairs",
                columns=["When", "Type", "Action", "Row", "Status before", "Run"],
                rows=changes,
                note="newest first" if changes else "No row of ours was ever repaired.",
            ),
        ]

    async def begin(client: Batuta, _: Nothing) -> str:
        handle = await client.schedules.trigger(SCHEDULE_ID)
        return f"run {handle.id} was started"

    async def allow(client: Batuta, allowed: Allowed) -> str:
        handle = await client.start(reconcile_keys, replace(options, retire_share=allowed.retire_share), queue=QUEUE)
        return f"run {handle.id} was started"

    now = Action(title="Reconcile now", form=Nothing, act=begin, about="Compares all keys, and repairs ours.")
    many = Action(
        title="Reconcile, many rows may end",
        form=Allowed,
        act=allow,
        about="After a run that repaired nothing, when the directory is right: 0.2 lets a fifth of a type's rows end.",
        danger=True,
    )
    return Page("Reconciliation", "/reconciliation", read, actions=[now, many])
