"""Names of headers and media types of the directory's API."""

from __future__ import annotations

import re

REQUESTING_PARTICIPANT = "PI-RequestingParticipant"
PAYER_ID = "PI-PayerId"
END_TO_END_ID = "PI-EndToEndId"

XML = "application/xml"
PROBLEM_XML = "application/problem+xml"

ISPB = re.compile(r"[a-zA-Z0-9]{8}")
"""The identifier of a participant; letters are allowed since 2.12.1."""
PAYER = re.compile(r"[0-9]{11}|[0-9]{14}")
"""The payer's CPF or CNPJ."""
