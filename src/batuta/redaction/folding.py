"""Digits, hyphens and spaces of documents, phones and other scripts, which pasted text contains."""

from __future__ import annotations

import re

_DIGIT = r"(?![0-9])\d"
_HYPHEN = "\u2010-\u2015\u2212\ufe58\ufe63\uff0d"
_SPACE = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
_UNSEEN = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
_WIDE = "\uff08\uff09\uff0b\uff0e\uff0f\uff1a\uff1d\uff20"
_OTHER = re.compile(
    f"(?P<digit>{_DIGIT})|(?P<hyphen>[{_HYPHEN}])|(?P<space>[{_SPACE}])|(?P<unseen>[{_UNSEEN}])|(?P<wide>[{_WIDE}])"
)
_WIDER = 0xFEE0
"""The offset of the wide form of a character."""


def folded(text: str) -> str:
    """The text with ASCII characters instead, and without invisible ones."""
    return text if text.isascii() else _OTHER.sub(_plain, text)


def _plain(match: re.Match[str]) -> str:
    match match.lastgroup:
        case "digit":
            return str(int(match[0]))
        case "hyphen":
            return "-"
        case "space":
            return " "
        case "wide":
            return chr(ord(match[0]) - _WIDER)
    return ""
