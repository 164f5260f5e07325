"""Checks that the database keeps its promises. Reads every run and its journal, and reports violations.

It only reads, may run beside live workers, and holds one page of runs and of journal at a time.
"""

from batuta.verify.report import INVARIANTS, Report, Violation
from batuta.verify.verifier import verify

__all__ = ["INVARIANTS", "Report", "Violation", "verify"]
