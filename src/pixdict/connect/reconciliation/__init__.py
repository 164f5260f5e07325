"""Our entries and the directory's, compared every night and repaired."""

from __future__ import annotations

from pixdict.connect.reconciliation.activities import ReconciliationActivities
from pixdict.connect.reconciliation.audit import Audit
from pixdict.connect.reconciliation.held import HeldEntries
from pixdict.connect.reconciliation.metrics import ReconciliationMetrics
from pixdict.connect.reconciliation.mirror import Mirror
from pixdict.connect.reconciliation.models import Change, Options, Report
from pixdict.connect.reconciliation.page import reconciliation_page
from pixdict.connect.reconciliation.worker import WORKFLOWS, reconciliation_worker
from pixdict.connect.reconciliation.workflow import QUEUE, SCHEDULE_ID, reconcile_keys, schedule

__all__ = [
    "QUEUE",
    "SCHEDULE_ID",
    "WORKFLOWS",
    "Audit",
    "Change",
    "HeldEntries",
    "Mirror",
    "Options",
    "ReconciliationActivities",
    "ReconciliationMetrics",
    "Report",
    "reconcile_keys",
    "reconciliation_page",
    "reconciliation_worker",
    "schedule",
]
