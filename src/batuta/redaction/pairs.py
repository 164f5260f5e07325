"""`name=value` in a text, in all the ways that people and programs write it: the values of fields are hidden."""

from __future__ import annotations

import re
from collections.abc import Callable

Find = Callable[[str], str | None]

_PAIR = re.compile(
    r"(?<![\w-])-{0,2}+(?P<name>\w[\w-]*+)"
    r"(?P<quote>\\{0,8}[\"'])?\s{0,4}(?:\)?\s?(?:={1,2}>?|:)|%3[AaDd])\s{0,4}"
    r"|<(?:[\w.-]{1,64}+:)?(?P<element>[^\W\d][\w.-]{0,64}+)(?:\s[^<>]{0,256}+)?>"
    r"|[(\[]\s{0,4}[bB]?\\{0,8}[\"'](?P<header>\w[\w-]{0,64}+)\\{0,8}[\"']\s{0,4},\s{0,4}(?=[bBrRuU]{0,2}\\{0,8}[\"'])"
    r"|(?<![\w-])-{1,2}+(?P<option>\w[\w-]*+)(?:\s{1,4}|\\{0,8}[\"'],\s{0,4})(?=[^\s-])"
)
"""A name, and what says that its value follows: `a=`, `"a": `, `\\"a\\":`, `a%3D`, `(a)=`, `<a>`, `("a", "`, `--a `."""

_CODE = re.compile(r"\A(?:25){0,3}[0-9A-Fa-f]{2}")
_QUOTE = re.compile(r"[bBrRuU]{0,2}(\\{0,8}[\"'])")
_OPENING = re.compile(r"[\w.]{0,64}+[\[({]")
_BRACKETS = re.compile(r"[\[\](){}]")
_BARE = re.compile(r"(?:(?i:bearer|basic|digest|token)(?:\s|%20|\+){1,4})?(?:[^\s&\"'<\\]|\\(?![\"'\\]))*+")
_AFTER = ",;.:)]}{[("
_TELLS_NOTHING = frozenset({"none", "null", "true", "false", "undefined", ""})
_LINE = re.compile(r"[^\r\n\"']*+")
_ELEMENT = re.compile(r"(?s:[^<]|<!\[CDATA\[(?:(?!\]\]>).)*+(?:\]\]>|\Z))*+")
_PAIR_ENDS = re.compile(r"\s{0,4}[)\]]")
_ERRORS = ("Error", "Exception", "Warning")
_HEADERS = frozenset({"authorization", "cookie"})
"""Their values have spaces in them."""


def hide_pairs(text: str, find: Find) -> str:
    """The text with marks in place of the values of fields: of names that `find` knows."""
    pieces: list[str] = []
    done = at = 0
    while (pair := _PAIR.search(text, at)) is not None:
        at = pair.end(pair.lastgroup or 0)
        field = _field(text, pair, find)
        if field is None:
            continue
        start, end, mark = _value_of(text, pair, field)
        if end > start:
            pieces += (text[done:start], mark)
            at = done = end
    return "".join([*pieces, text[done:]]) if pieces else text


def _field(text: str, pair: re.Match[str], find: Find) -> str | None:
    if pair["element"]:
        return find(pair["element"])
    if pair["option"]:
        return find(pair["option"])
    if pair["header"]:
        return find(pair["header"]) if _is_pair(text, pair.end()) else None
    name, before = pair["name"], text[pair.start("name") - 1 : pair.start("name")]
    if name.endswith(_ERRORS) and text.startswith(": ", pair.end("name")):
        return None  # AuthorizationError: its message follows
    found = find(name)
    if found is None and before in ("\\", "%"):  # its first character may be escaped: \npassword, %26password
        found = find(name[1:] if before == "\\" else _CODE.sub("", name))
    return found


def _is_pair(text: str, at: int) -> bool:
    """Whether the quoted text that begins there is the last thing in its brackets."""
    quote = _QUOTE.match(text, at)
    if quote is None:
        return False
    end = _quoted(text, quote.end(), quote[1])
    return _PAIR_ENDS.match(text, end + len(quote[1])) is not None


def _value_of(text: str, pair: re.Match[str], field: str) -> tuple[int, int, str]:
    """The position of the value, and its replacement."""
    at, mark = pair.end(), f"[{field}]"
    if pair["element"]:
        return at, _end(_ELEMENT, text, at), mark
    if (quote := _QUOTE.match(text, at)) is not None:
        return quote.end(), _quoted(text, quote.end(), quote[1]), mark
    quoted = f"{pair['quote'] or ''}{mark}{pair['quote'] or ''}"  # JSON stays JSON
    if (opening := _OPENING.match(text, at)) is not None:
        return at, _closed(text, opening.end()), quoted
    if field in _HEADERS:
        return at, _end(_LINE, text, at), mark
    bare = text[at : _end(_BARE, text, at)].rstrip(_AFTER)
    return at, at if bare.lower() in _TELLS_NOTHING else at + len(bare), quoted


def _quoted(text: str, start: int, quote: str) -> int:
    """Where the quote is that closes. SQL writes two for one inside."""
    closing = re.compile(rf"(?<!\\){re.escape(quote)}")
    found = closing.search(text, start)
    while found is not None and found.start() > start and quote == "'" and text.startswith("'", found.end()):
        found = closing.search(text, found.end() + 1)
    return len(text) if found is None else found.start()


def _end(regex: re.Pattern[str], text: str, at: int) -> int:
    found = regex.match(text, at)
    return at if found is None else found.end()


def _closed(text: str, at: int) -> int:
    """After the bracket that closes the one before `at`; the end, when none does."""
    depth = 1
    for bracket in _BRACKETS.finditer(text, at):
        depth += 1 if bracket[0] in "[({" else -1
        if depth == 0:
            return bracket.end()
    return len(text)
