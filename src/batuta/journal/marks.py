"""Marks: facts about a namespace for all its clients. Values, no I/O.

They guard against mistakes: a process without the key, a shell without BATUTA_REDACT. Anybody with the password of the
database can remove them.
"""

from __future__ import annotations

CODEC = "codec"
"""Payloads of the namespace are encrypted. So is the value: a client that cannot read it must not write."""
REDACT = "redact"
"""Commands show nothing of payloads that the usual patterns hide. The value says nothing."""
NAMES = (CODEC, REDACT)
