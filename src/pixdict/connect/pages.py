"""The pages of connect on a dashboard."""

from __future__ import annotations

from batuta.server import Page
from pixdict.connect.database import Database
from pixdict.connect.keys import KeyTables
from pixdict.connect.keys.page import claims_page, keys_page
from pixdict.connect.monitor import MonitorTables
from pixdict.connect.monitor.page import dict_page
from pixdict.connect.reconciliation import Audit, reconciliation_page


def connect_pages(tables: KeyTables, database: Database) -> list[Page]:
    """`tables`: our entries and claims. `database`: that of the monitor and of reconciliation."""
    return [
        dict_page(MonitorTables(database)),
        keys_page(tables),
        claims_page(tables),
        reconciliation_page(Audit(database)),
    ]
