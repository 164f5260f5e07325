"""Secrets of flows: a document names them, `secret://env/CRM_TOKEN`, and only the call itself learns their values.

A reference counts where the document itself has it. The same text in an event is a text like any other: who sends
events cannot have a secret sent. Where references stand is worked out from the document; the rendered request holds a
gap there, which the activity fills. Answers and errors are searched for the values before anybody keeps them.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from batuta.authoring.activity.attempt import current_attempt
from batuta.errors import BatutaError, InvalidInput
from batuta.flows.expressions import Value, as_text, compile_template, compile_url, measured
from batuta.flows.faults import Fault
from batuta.flows.stored_secrets import stored_secret
from batuta.flows.values import is_number, placed_texts, texts_of

MARK: Final = "secret://"
REFERENCE = re.compile(r"secret://([a-z]{1,20})/([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
ENVIRONMENT_PREFIX: Final = "BATUTA_SECRET_"
"""Before the names of variables: a document must not read others, such as the keys of the server."""
HIDDEN: Final = "[secret]"
_SHORTEST: Final = 4
"""Values shorter than that are not searched for: they would be found everywhere."""
_LONG: Final = 4_000
"""Longer ones are searched for as a whole, as they are or escaped."""
_LARGEST: Final = 64 * 1024

SecretSource = Callable[[str], Awaitable[str | None]]
"""Gives the value of a name, or None."""


class UnknownSecret(InvalidInput):
    """A reference that leads nowhere."""


class Gap(Struct, array_like=True):
    """A text of a request that secrets belong in."""

    path: list[str | int]
    pieces: list[str | list[str]]
    """Texts, and references as lists: `["env", "CRM_TOKEN"]`."""


class Secrets:
    """Where the values come from: the environment, files of a folder, the store, and sources of your own."""

    def __init__(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        sources: Mapping[str, SecretSource] | None = None,
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._environment = os.environ if environment is None else environment
        self._sources = dict(sources or {})

    async def value(self, kind: str, name: str) -> str:
        """Raises UnknownSecret, which names the reference and where it was looked for."""
        if kind in self._sources:
            found, place = await self._sources[kind](name), f"source {kind!r}"
        elif kind == "env":
            found, place = self._environment.get(ENVIRONMENT_PREFIX + name), f"variable {ENVIRONMENT_PREFIX}{name}"
        elif kind == "store":
            found, place = (
                await stored_secret(current_attempt("a secret").store(), name),
                f"secret {name!r} of the store",
            )
        elif kind == "file":
            found, place = self._from_file(name), f"file {name!r} of the folder of secrets"
        else:
            raise UnknownSecret(
                f"secret://{kind}/{name}: this worker has no source {kind!r}: give Flows(secrets=...) one"
            )
        if found is None:
            raise UnknownSecret(f"secret://{kind}/{name} is not there: set {place}")
        return found

    def _from_file(self, name: str) -> str | None:
        if self._folder is None or not _FILE.fullmatch(name):
            return None
        try:
            with (self._folder / name).open(encoding="utf-8") as file:
                return file.read(_LARGEST).rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            return None

    async def fill(self, request: Any, gaps: Iterable[Gap]) -> tuple[Any, list[str]]:
        """A copy of the request with its gaps filled, and the values that are in it now."""
        used: list[str] = []
        for gap in gaps:
            pieces: list[str] = []
            for piece in gap.pieces:
                if isinstance(piece, str):
                    pieces.append(piece)
                else:
                    used.append(await self.value(piece[0], piece[1]))
                    pieces.append(used[-1])
            request = with_text(request, gap.path, "".join(pieces))
        return request, used


def with_text(value: Any, path: Sequence[str | int], text: str) -> Any:
    """A copy of the value with the text at that place."""
    if not path:
        return text
    first, rest = path[0], path[1:]
    if isinstance(value, list):
        return [with_text(part, rest, text) if place == first else part for place, part in enumerate(value)]
    return {**value, first: with_text(value.get(first), rest, text)}


def hide(value: Any, secrets: Iterable[str]) -> Any:
    """The value without the secrets that it holds, also as URLs, JSON and HTML write them."""
    known = sorted({one for one in secrets if len(one) >= _SHORTEST}, key=len, reverse=True)
    return _hide(value, [_form(one) for one in known]) if known else value


@lru_cache(maxsize=256)
def _form(secret: str) -> re.Pattern[str]:
    """Finds a secret, each sign of it as it is or escaped: clients escape some signs of a URL, and leave others."""
    if len(secret) > _LONG:
        whole = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, safe="")}
        return re.compile("|".join(map(re.escape, sorted(whole, key=len, reverse=True))))
    return re.compile("".join(map(_sign, secret)))


def _sign(sign: str) -> str:
    if sign.isascii() and sign.isalnum():
        return sign
    forms = {sign, json.dumps(sign)[1:-1], f"\\u{ord(sign):04x}", quote(sign, safe=""), html.escape(sign)}
    forms |= {f"&#{ord(sign)};", *({"/": ["\\/"], " ": ["+"]}.get(sign, ()))}
    return f"(?i:{'|'.join(map(re.escape, sorted(forms, key=len, reverse=True)))})"


def _hide(value: Any, known: list[re.Pattern[str]]) -> Any:
    if isinstance(value, str):
        for one in known:
            value = one.sub(HIDDEN, value)
        return value
    if isinstance(value, Mapping):
        return {_hide(key, known): _hide(part, known) for key, part in value.items()}
    if isinstance(value, list):
        return [_hide(part, known) for part in value]
    is_secret = is_number(value) and any(one.fullmatch(json.dumps(value)) for one in known)
    return HIDDEN if is_secret else value


# -- where a document has them


def secret_faults(template: Any, path: str) -> list[Fault]:
    """Faults in the references of a template."""
    return [
        Fault(at, "a reference to a secret that cannot be read", "such as secret://env/CRM_TOKEN")
        for at, text in texts_of(template, path)
        if MARK in REFERENCE.sub("", text)
    ]


def compile_gaps(template: dict[str, Any]) -> tuple[Value, Callable[[Mapping[str, Any]], list[Gap]]]:
    """What gives the request without its references, and what gives the gaps with their other expressions evaluated.
    Raises InvalidInput."""
    made: list[tuple[tuple[str | int, ...], list[Any]]] = []
    for path, text in placed_texts(template):
        if MARK not in text:
            continue
        pieces: list[Any] = []
        position = 0
        for match in REFERENCE.finditer(text):
            pieces += [_compiled(path, text[position : match.start()]), [match[1], match[2]]]
            position = match.end()
        made.append((path, [*pieces, _compiled(path, text[position:])]))
        template = with_text(template, path, "")

    if isinstance(url := template.get("url"), str):
        template = {name: value for name, value in template.items() if name != "url"}
    rest, address = compile_template(template), compile_url(url or "")

    def filled(scope: Mapping[str, Any]) -> dict[str, Any]:
        return rest(scope) if url is None else {"url": as_text(address(scope)), **rest(scope)}

    def gaps(scope: Mapping[str, Any]) -> list[Gap]:
        together = measured(scope)
        return [
            Gap(list(path), [piece if isinstance(piece, list) else piece(together) for piece in pieces])
            for path, pieces in made
        ]

    return filled, gaps


def _compiled(path: tuple[str | int, ...], text: str) -> Value:
    """A piece of a text, which gives a text."""
    if path != ("url",):
        made = compile_template(text)
        return lambda scope: as_text(made(scope))
    made = compile_url(f"{text}\0")  # never one expression alone, whose value would not be escaped
    return lambda scope: made(scope)[:-1]


def safe_words(error: BaseException, secrets: Iterable[str]) -> str:
    """The message of an error without secrets."""
    text: str = hide(str(error) if isinstance(error, BatutaError) else f"{type(error).__name__}: {error}", secrets)
    return text
