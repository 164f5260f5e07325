"""Hides personal data and secrets in log lines, spans and the command line. Stored data stays complete."""

from __future__ import annotations

from batuta.redaction.environment import from_env
from batuta.redaction.fields import FIELDS
from batuta.redaction.known import PATTERNS, USUAL
from batuta.redaction.logs import RedactingFilter, redact_handlers
from batuta.redaction.patterns import Pattern
from batuta.redaction.redactor import Redactor

__all__ = ["FIELDS", "PATTERNS", "USUAL", "Pattern", "RedactingFilter", "Redactor", "from_env", "redact_handlers"]
