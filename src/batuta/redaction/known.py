"""Patterns of personal data and secrets in a text.

None of these expressions looks at a character more often than a fixed number of times: unbounded repetitions are
possessive, and begin only where no match of them has begun before. A test checks that.
"""

from __future__ import annotations

import re

from batuta.redaction.digits import is_card, is_cnpj, is_cpf
from batuta.redaction.patterns import Check, Pattern

# -- where a number or a word begins: also after an escape of a URL, JSON or repr

_CODED = r"%(?:25){0,3}"
"""Before the two digits of a character in a URL, or in a URL in a URL."""
_ESCAPED = (
    r"(?<=%[0-9A-Fa-f]{2})|(?<=%25[0-9A-Fa-f]{2})|(?<=%2525[0-9A-Fa-f]{2})|(?<=\\x[0-9a-f]{2})|(?<=\\u[0-9a-f]{4})"
)
_NUMBER = rf"(?:(?<![0-9])|{_ESCAPED})"
_WORD = rf"(?:(?<![0-9A-Za-z])|(?<=\\[nrt])|{_ESCAPED})"
_END = r"(?![0-9])"
_ANY = r"[0-9A-Za-z]"
_RANDOM = r"[A-Za-z0-9._~+/=-]"
_SPACE, _SLASH, _PLUS = rf"(?:[ +]|{_CODED}20)", rf"(?:/|\\/|{_CODED}2[Ff])", rf"(?:\+|{_CODED}2[Bb])"
_AT, _OPEN, _CLOSE = rf"(?:@|{_CODED}40)", rf"(?:\(|{_CODED}28)", rf"(?:\)|{_CODED}29)"
_GAP = rf"(?:[.-]|{_SPACE})?"

_SEPARATORS = re.compile(rf"{_CODED}[0-9A-Fa-f]{{2}}|[^0-9A-Za-z]")


def _bare(match: re.Match[str]) -> str:
    return _SEPARATORS.sub("", match[0])


def _cpf(match: re.Match[str]) -> bool:
    return is_cpf(_bare(match))


def _cnpj(match: re.Match[str]) -> bool:
    found = _bare(match)
    is_written_so = found.isupper() or found.isdecimal() or "." in match[0]
    return is_written_so and is_cnpj(found.upper())


def _card(match: re.Match[str]) -> bool:
    return is_card(_bare(match))


def _looks_random(match: re.Match[str]) -> bool:
    """Not a word of a sentence: `basic authentication`, `bearer of news`."""
    token = match["shown"]
    return (
        len(token) >= 20 or any(character.isdigit() for character in token) or not (token.islower() or token.istitle())
    )


def _is_pix(match: re.Match[str]) -> bool:
    return "br.gov.bcb.pix" in match[0].lower()


_CNPJ = (
    rf"{_NUMBER}[0-9]{{2}}(\.|{_SPACE}|)[0-9]{{3}}\1[0-9]{{3}}(?:{_SLASH}|{_SPACE})?[0-9]{{4}}{_GAP}[0-9]{{2}}{_END}"
)
_NEW_CNPJ = rf"{_WORD}{_ANY}{{2}}(\.?){_ANY}{{3}}\1{_ANY}{{3}}{_SLASH}?{_ANY}{{4}}-?[0-9]{{2}}(?!{_ANY})"
_CPF = rf"{_NUMBER}[0-9]{{3}}([.-]|{_SPACE}|)[0-9]{{3}}\1[0-9]{{3}}{_GAP}[0-9]{{2}}{_END}"
_LOCAL = r"(?:[\w.+\\-]|%(?!(?:25){0,3}40)[0-9A-Fa-f]{2}|%(?![0-9A-Fa-f]{2}))++"
_EMAIL = rf"(?<![\w.+\\%-]){_LOCAL}{_AT}[\w-]++(?:\.[\w-]++)++"
_URL = r"""(?<=://)[^\s/:@]*+:(?P<shown>[^\s/@]++(?:@[^\s/@?#&"'<>]++(?=@))*+)(?=@)"""
_SLASHED = r"""(?<=://)[^\s/:@]*+:(?![0-9]{1,5}/)(?P<shown>[^\s/@"'<>?#]++(?:/[^\s/@"'<>?#]*+){1,8}+)(?=@)"""
"""A password with a slash in it, where a port would stand else."""
_CODED_URL = r"""%3[Aa]%2[Ff]%2[Ff](?:(?!%3[Aa]|%40)[\w.~%+-])*+%3[Aa](?P<shown>(?:(?!%40)[^\s&"'<>])++)(?=%40)"""
"""A URL in a URL."""
_USER = r"(?<=://)(?P<shown>[\w.~-]{16,255}+)(?=@)"
"""A token that is all there is before the host."""
_ATTEMPT = rf"{_WORD}t\.[\w-]{{40,}}+"
"""The token of an attempt that is completed from outside."""
_KEY = r"(?<=[\w-]:)(?P<shown>[A-Za-z0-9+/]{43}=)(?![A-Za-z0-9+/=])"
"""A key of payloads: `march:<base64>`."""
_API_KEY = rf"{_WORD}batuta_live_[0-9a-f]{{12}}_(?P<shown>[0-9a-f]{{16,}}+)"
"""An API key of the server. The part before the secret tells keys apart."""
_WEBHOOK = rf"{_WORD}whsec_(?P<shown>[A-Za-z0-9+/=_-]{{16,}}+)"
"""The secret that webhooks are signed with."""
_PEM = r"-----BEGIN [A-Z ]{0,40}+(?<=PRIVATE KEY)-----(?P<shown>(?:[^-]|-(?!----))++)"
"""A private key in a file of its own."""
_LINE = rf"(?:9[0-9]{{4}}|[2-9][0-9]{{3}}){_GAP}[0-9]{{4}}{_END}"
_BRAZIL = rf"{_PLUS}55{_GAP}{_OPEN}?[1-9][0-9]{_CLOSE}?{_GAP}{_LINE}"
_ABROAD = rf"{_PLUS}[1-9](?:(?:[ .()+-]|{_CODED}2[089]){{0,2}}[0-9]){{7,14}}{_END}"
_CARD = (
    rf"{_NUMBER}(?:[2-6][0-9]{{12,18}}|[2-6][0-9]{{3}}(-|{_SPACE})[0-9]{{4}}\1[0-9]{{4}}\1[0-9]{{1,4}}"
    rf"(?:\1[0-9]{{3}})?|3[0-9]{{3}}(-|{_SPACE})[0-9]{{6}}\2[0-9]{{4,5}}){_END}"
)
_EVP = r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-4[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}(?![A-Za-z])"
_JWT = rf"(?:(?<![\w-])|(?<=\\[nrt])|{_ESCAPED})eyJ[\w-]++(?:\.[\w-]*+){{2,4}}+"
_BEARER = rf"{_WORD}(?i:bearer|basic)(?:\s|{_SPACE}){{1,4}}(?P<shown>{_RANDOM}{{8,}}+)"


def _number(name: str, regex: str, check: Check | None = None) -> Pattern:
    return Pattern(name, re.compile(regex), check, is_number=True)


_ALL = (
    Pattern("password", re.compile(_URL)),
    Pattern("password", re.compile(_SLASHED)),
    Pattern("password", re.compile(_CODED_URL)),
    Pattern("password", re.compile(_USER), _looks_random),
    Pattern("token", re.compile(_ATTEMPT)),
    Pattern("key", re.compile(_KEY)),
    Pattern("key", re.compile(_PEM)),
    Pattern("key", re.compile(_API_KEY)),
    Pattern("key", re.compile(_WEBHOOK)),
    Pattern("token", re.compile(_BEARER), _looks_random),
    Pattern("token", re.compile(_JWT)),
    Pattern("brcode", re.compile(r"000201.{20,512}?6304[0-9A-Fa-f]{4}(?![0-9A-Za-z])"), _is_pix),
    Pattern("email", re.compile(_EMAIL)),
    Pattern("evp", re.compile(_EVP)),
    _number("cnpj", _CNPJ, _cnpj),
    _number("cnpj", _NEW_CNPJ, _cnpj),
    _number("cpf", _CPF, _cpf),
    _number("phone", _BRAZIL),
    _number("phone", _ABROAD),
    _number("phone", rf"{_NUMBER}55[1-9][1-9]9[0-9]{{8}}{_END}"),
    _number("phone", rf"{_OPEN}[1-9][0-9]{_CLOSE}{_GAP}{_LINE}"),
    _number("phone", rf"{_NUMBER}[1-9][1-9](?:-|{_SPACE})9[0-9]{{4}}-[0-9]{{4}}{_END}"),
    _number("card", _CARD, _card),
)
"""In this order: what holds others, such as a URL or a Pix code, comes before them."""

PATTERNS: dict[str, tuple[Pattern, ...]] = {
    name: tuple(one for one in _ALL if one.name == name) for name in dict.fromkeys(one.name for one in _ALL)
}
"""By the names that a Redactor is given."""

USUAL = tuple(name for name in PATTERNS if name != "evp")
"""Without `evp`: UUIDs are also the ids of orders. Those of runs are of another version, and never match."""


def in_order(chosen: list[Pattern]) -> list[Pattern]:
    """Ours in their order, then the user's own."""
    return [one for one in _ALL if one in chosen] + [one for one in chosen if one not in _ALL]
