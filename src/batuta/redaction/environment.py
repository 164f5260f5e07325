"""Reads BATUTA_REDACT."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

from batuta.errors import InvalidInput
from batuta.redaction.known import PATTERNS
from batuta.redaction.redactor import Redactor

VARIABLE = "BATUTA_REDACT"
_NO = frozenset({"", "0", "none", "no", "off", "false"})
_YES = frozenset({"1", "yes", "on", "true"})


def from_env(env: Mapping[str, str] | None = None) -> Redactor | None:
    """None unless BATUTA_REDACT is set: `1` the usual, `all` every pattern, `MODULE:ATTR` a Redactor of your own.
    Raises InvalidInput."""
    text = (os.environ if env is None else env).get(VARIABLE, "").strip()
    match text.lower():
        case word if word in _NO:
            return None
        case word if word in _YES:
            return Redactor()
        case "all":
            return Redactor(PATTERNS)
    module, colon, attribute = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise InvalidInput(f"{VARIABLE}={text!r} must be 1, all, 0, or the MODULE:ATTR of a batuta.redaction.Redactor")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        raise InvalidInput(f"{VARIABLE}={text!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, Redactor):
        raise InvalidInput(f"{VARIABLE}={text!r} is {found!r}, not a batuta.redaction.Redactor: give it its own module")
    return found
