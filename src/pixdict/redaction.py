"""What pixdict hides in logs, spans and on the dashboard: `BATUTA_REDACT=pixdict.redaction:REDACTOR`."""

from __future__ import annotations

from batuta.redaction import Redactor

FIELDS = ("key_value", "account_number", "name")
REDACTOR = Redactor(fields=FIELDS)
"""The usual personal data, and the fields of keys and accounts."""
