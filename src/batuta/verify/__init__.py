"""Does the database keep its promises? Reads every run and its journal, and says what does not hold.

It only reads, it may run beside live workers, and it holds one page of runs and of journal at a time.
"""

from batuta.verify.audit import verify
from batuta.verify.report import INVARIANTS, Report, Violation

__all__ = ["INVARIANTS", "Report", "Violation", "verify"]
