"""Values to JSON and back, once, in one place. Types come from annotations; nothing is ever unpickled.

What workflow code is given is always the decoded copy, also live: a value that changes on its way through JSON
changes the same way every time.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from batuta.errors import InvalidInput, NotSerialisable, PayloadDamaged, TooLarge, told, words_of

MAX_PAYLOAD = 2 * 1024 * 1024
"""Bytes of JSON that one argument list, result or message may take, unless a setting says otherwise."""


def _to_builtins(value: Any) -> Any:
    """msgspec's hook for unknown types: pydantic models, and others with the same dump method."""
    kind: type = type(value)
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"objects of type {kind.__qualname__} are not supported")
    dumped = dump(mode="json") if _reads_names(kind) else dump(mode="json", by_alias=True)
    return _with_sorted_sets(value, dumped) if _needs_sorting(value) else dumped


def _from_builtins(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:  # as JSON, for which a strict model lets a string be a datetime
        data = _encoder.encode(value)
        return validate(data, by_alias=True, by_name=True) if _reads_names(kind) else validate(data)
    if isinstance(value, kind):
        return value
    raise NotImplementedError


@functools.cache
def _reads_names(kind: type) -> bool:
    """Whether a model with aliases can be told to read its fields by their own names (pydantic 2.11 and later)."""
    validate = getattr(kind, "model_validate_json", None)
    return validate is None or "by_name" in inspect.signature(validate).parameters


def _with_sorted_sets(value: Any, dumped: Any) -> Any:
    """The dump of a model, with former sets sorted so that their order is the same in every process."""
    if isinstance(value, set | frozenset) and isinstance(dumped, list):
        return sorted(dumped, key=_encoder.encode)
    if isinstance(value, list | tuple) and isinstance(dumped, list) and len(value) == len(dumped):
        return [_with_sorted_sets(one, its) for one, its in zip(value, dumped, strict=True)]
    if isinstance(dumped, dict):
        parts = dict(zip(dumped, value.values(), strict=False)) if isinstance(value, dict) else _fields(value)
        return {key: _with_sorted_sets(parts.get(key), its) for key, its in dumped.items()}
    return dumped


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a struct, a dataclass or a model, by name."""
    names: Iterable[str] = getattr(value, "__struct_fields__", getattr(value, "__dataclass_fields__", ()))
    if hasattr(value, "model_dump"):
        names = getattr(value, "__dict__", ())
    return {name: getattr(value, name, None) for name in names}


_encoder = msgspec.json.Encoder(enc_hook=_to_builtins)
_sorting_encoder = msgspec.json.Encoder(enc_hook=_to_builtins, order="deterministic")
_PLAIN = frozenset((int, str, float, bool, bytes, type(None)))
encode_simple = _encoder.encode  # found once: it is called several times a step
SIMPLE = _PLAIN - {float}
"""Types of what holds no set to be sorted and no NaN, as most calls pass and return it: `encode_simple` does for it."""


def _needs_sorting(value: Any) -> bool:
    """Whether the value contains a set: its order differs between processes, so it must be sorted to be compared."""
    kind = type(value)
    if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):  # what most calls pass
        return False
    try:
        return _holds_set(value)
    except RecursionError:  # a circle: the encoder says so, in the same words every time
        return False


def _holds_set(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return False
    if kind is tuple or kind is list:
        return any(map(_holds_set, value))
    if kind is dict:
        return any(map(_holds_set, value.values()))
    if kind is set or kind is frozenset:
        return True
    return any(map(_holds_set, _fields(value).values()))


def _sorted_json(value: Any) -> bytes:
    try:
        return _sorting_encoder.encode(value)
    except TypeError:  # there is a dict with numbers or members of an Enum for keys, which only this way sorts
        plain = msgspec.to_builtins(value, enc_hook=_to_builtins, order="deterministic", str_keys=True)
        return _encoder.encode(plain)


def encode(value: Any, what: str = "a value", limit: int = MAX_PAYLOAD) -> bytes:
    """The JSON of a value. Raises NotSerialisable or TooLarge, naming `what`."""
    try:
        kind = type(value)
        if kind in SIMPLE or (kind is tuple and SIMPLE.issuperset(map(type, value))):
            data = encode_simple(value)
            if len(data) <= limit:
                return data
    except Exception:  # noqa: BLE001, S110 - whatever it is, the slow way below meets it again and says so
        pass
    try:
        data = _sorted_json(value) if _needs_sorting(value) else _encoder.encode(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _no_json(what, error) from error
    if len(data) > limit:
        raise TooLarge(what, len(data), limit)
    # msgspec writes NaN and infinity as null: the value would be lost. (`in` makes and drops an exception first.)
    if data.find(b"null") >= 0 and _holds_nan(value, what):
        raise NotSerialisable(f"{what} holds NaN or infinity, which JSON does not have: send None or a string")
    return data


_UNKNOWN_TYPES = (TypeError, NotImplementedError, OverflowError, UnicodeError, ValueError, RecursionError)
"""Errors of the encoder itself. Others come from the user's code: a property, a model's serialiser."""


def _no_json(what: str, error: BaseException) -> NotSerialisable:
    if isinstance(error, _UNKNOWN_TYPES):
        return NotSerialisable(
            f"{what} has no JSON form: {words_of(error)}. Use plain values, dataclasses, msgspec or "
            f"pydantic models, Decimal, datetime, UUID, Enum or bytes"
        )
    return NotSerialisable(f"{what} has no JSON form: its own code raised {told(error)}")


def _holds_nan(value: Any, what: str) -> bool:
    try:
        return _has_nan(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _no_json(what, error) from error


def _has_nan(value: Any) -> bool:
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(_has_nan(item) for pair in value.items() for item in pair)
        case list() | tuple() | set() | frozenset():
            return any(map(_has_nan, value))
    return any(map(_has_nan, _fields(value).values()))


class Decoder(Protocol):
    """Gives values of one annotation from JSON."""

    def decode(self, data: bytes | str | msgspec.Raw, /) -> Any: ...


class _UnionDecoder:
    """For unions that msgspec does not tell apart, such as two dataclasses.

    The member that gives the same JSON again; failing that, the first that fits.
    """

    def __init__(self, members: list[Decoder]) -> None:
        self._members = members

    def decode(self, data: bytes | str | msgspec.Raw) -> Any:
        errors, fitting = [], []
        for member in self._members:
            try:
                value = member.decode(data)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a validator of the user's own: it does not fit
                errors.append(words_of(error))
                continue
            if _encoder.encode(value) == (data.encode() if isinstance(data, str) else bytes(data)):
                return value
            fitting.append(value)
        if fitting:
            return fitting[0]
        raise msgspec.ValidationError("fits no member of the union: " + "; ".join(errors))


class _ModelDecoder:
    """For annotations with pydantic models that msgspec cannot take apart, such as a list of either of two."""

    def __init__(self, annotation: Any) -> None:
        from pydantic import TypeAdapter

        self._adapter: Any = TypeAdapter(annotation)

    def decode(self, data: bytes | str | msgspec.Raw) -> Any:
        return self._adapter.validate_json(data if isinstance(data, str) else bytes(data))


def _holds_model(annotation: Any) -> bool:
    return hasattr(annotation, "__pydantic_validator__") or any(map(_holds_model, typing.get_args(annotation)))


def decoder_for(annotation: Any, what: str) -> Decoder:
    """A decoder for an annotation. Raises NotSerialisable when no JSON can be read as it."""
    try:
        _refuse_strange_types(msgspec.inspect.type_info(annotation))
        return msgspec.json.Decoder(annotation, dec_hook=_from_builtins)
    except TypeError as error:
        if typing.get_origin(annotation) in (typing.Union, types.UnionType):
            return _UnionDecoder([decoder_for(member, what) for member in typing.get_args(annotation)])
        if _holds_model(annotation):
            return _ModelDecoder(annotation)
        raise NotSerialisable(f"{what} is annotated {annotation!r}, which has no JSON form: {error}") from error


def _refuse_strange_types(info: Any, seen: frozenset[int] = frozenset()) -> None:
    """Raises TypeError for classes that nothing can make from JSON, wherever they stand in an annotation."""
    if isinstance(info, msgspec.inspect.CustomType):
        if not hasattr(info.cls, "model_validate"):
            raise TypeError(f"nothing is known about class {info.cls.__qualname__}")
    elif isinstance(info, tuple | list):
        for part in info:
            _refuse_strange_types(part, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and id(info) not in seen:
        for name in info.__struct_fields__:
            _refuse_strange_types(getattr(info, name), seen | {id(info)})


UNFIT = BaseException
"""Errors that a decoder may raise for JSON that does not fit: it calls validators and `__post_init__` of the user.

`unfit` handles them, and lets a KeyboardInterrupt pass.
"""


def decode(data: bytes | str | msgspec.Raw, decoder: Decoder, what: str) -> Any:
    """The value, or InvalidInput that says what did not fit."""
    try:
        return decoder.decode(data)
    except UNFIT as error:
        raise unfit(what, error) from error


def decode_stored(text: str | bytes | msgspec.Raw, what: str, type: Any = Any) -> Any:
    """A value that lies in the database. Raises PayloadDamaged when it cannot be read."""
    try:
        return msgspec.json.decode(text, type=type)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise PayloadDamaged(f"{what} cannot be read: {told(error)}") from None


def unfit(what: str, error: BaseException) -> InvalidInput:
    if isinstance(error, KeyboardInterrupt):
        raise error
    said = words_of(error) if isinstance(error, _MISFITS) else f"its own code raised {told(error)}"
    return InvalidInput(f"{what} does not fit its annotation: {said}")


_MISFITS = (msgspec.DecodeError, ValueError, TypeError, NotImplementedError)
"""What decoders themselves raise."""


_NO_KEYWORDS: dict[str, Any] = {}  # never changed: it is only ever unpacked
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Codec:
    """The JSON face of a function: its arguments as an array, its result as a value.

    The array holds the arguments that were given, in order of the parameters. Keyword-only parameters make it an
    object `{"args": [...], "kwargs": {...}}`.
    """

    def __init__(self, fn: Callable[..., Any], what: str, *, bound: bool = False) -> None:
        self.what = what
        self._input, self.output = f"the input of {what}", f"the result of {what}"
        self.signature = inspect.signature(fn)
        hints = type_hints(fn, what)
        parameters = list(self.signature.parameters.values())[1 if bound else 0 :]
        if bound:
            self.signature = self.signature.replace(parameters=parameters)
        self._types = [hints.get(p.name, Any) for p in parameters if p.kind in _POSITIONAL]
        self._required = sum(p.kind in _POSITIONAL and p.default is p.empty for p in parameters)
        self._rest = next((hints.get(p.name, Any) for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self._keywords = {p.name: hints.get(p.name, Any) for p in parameters if p.kind is p.KEYWORD_ONLY}
        self._any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._by_arity: dict[int, Decoder] = {}
        self.result_decoder = decoder_for(hints.get("return", Any), self.output)
        self._keyword_decoders = {
            name: decoder_for(kind, f"argument {name!r} of {what}") for name, kind in self._keywords.items()
        }
        for arity in range(self._required, len(self._types) + 1):
            self._arity(arity)  # now, so that a bad annotation is found when the function is defined
        fixed = self._required == len(self._types) and self._rest is None
        # Decodes arguments with a fixed number of parameters.
        self.plain = self._arity(self._required) if fixed and not self._keywords and not self._any_keyword else None

    def encode_args(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int = MAX_PAYLOAD) -> bytes:
        """Arguments to JSON. Raises TypeError as a call would when they do not match the parameters."""
        if not kwargs and not self._keywords and self._required <= len(args) <= len(self._types):
            return encode(args, self._input, limit)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._input} does not fit its parameters: {error}") from None
        if self._keywords or self._any_keyword:
            value: Any = {"args": bound.args, "kwargs": bound.kwargs}
        else:
            if bound.kwargs:  # given by name after one that was left out
                bound.apply_defaults()
            value = bound.args
        return encode(value, self._input, limit)

    def decode_args(self, data: bytes | msgspec.Raw) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """JSON to arguments of the annotated types. Raises InvalidInput."""
        if self.plain is not None:
            try:
                return self.plain.decode(data), _NO_KEYWORDS
            except UNFIT as error:
                raise unfit(self._input, error) from error
        if bytes(data)[:1] == b"{":
            args, kwargs = self._decode_object(data, self._input)
        else:
            given = decode(data, _list_decoder, self._input)
            args, kwargs = decode(data, self._arity(len(given)), self._input), {}
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidInput(f"{self._input} does not fit its parameters: {error}") from None
        return args, kwargs

    def _decode_object(self, data: bytes | msgspec.Raw, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        both = decode(data, _object_decoder, what)
        args = decode(both.args, self._arity(len(msgspec.json.decode(both.args))), what)
        kwargs = {
            name: decode(value, self._keyword_decoders.get(name, _any_decoder), f"argument {name!r} of {self.what}")
            for name, value in both.kwargs.items()
        }
        return args, kwargs

    def encode_result(self, value: Any, limit: int = MAX_PAYLOAD) -> bytes:
        return encode(value, self.output, limit)

    def decode_result(self, data: bytes | msgspec.Raw) -> Any:
        """JSON to the annotated result. Raises InvalidInput."""
        try:
            return self.result_decoder.decode(data)
        except UNFIT as error:
            raise unfit(self.output, error) from error

    def _arity(self, count: int) -> Decoder:
        found = self._by_arity.get(count)
        if found is None:
            kinds = self._types[:count] + [self._rest or Any] * (count - len(self._types))
            found = self._by_arity[count] = _arguments_decoder(kinds, self.what)
        return found


class _Arguments(msgspec.Struct):
    args: msgspec.Raw
    kwargs: dict[str, msgspec.Raw]


_object_decoder = msgspec.json.Decoder(_Arguments)
_any_decoder = msgspec.json.Decoder()
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class _EachDecoder:
    """For argument lists with a type that msgspec cannot put into a tuple: decodes one by one."""

    def __init__(self, members: list[Decoder]) -> None:
        self._members = members

    def decode(self, data: bytes | str | msgspec.Raw) -> tuple[Any, ...]:
        given = msgspec.json.decode(data, type=list[msgspec.Raw])
        if len(given) != len(self._members):
            raise msgspec.ValidationError(f"expected {len(self._members)} arguments, got {len(given)}")
        return tuple(member.decode(item) for member, item in zip(self._members, given, strict=True))


def _arguments_decoder(kinds: list[Any], what: str) -> Decoder:
    try:
        together: Any = types.GenericAlias(tuple, tuple(kinds))
        _refuse_strange_types(msgspec.inspect.type_info(together))
        return msgspec.json.Decoder(together, dec_hook=_from_builtins)
    except TypeError:
        return _EachDecoder([decoder_for(kind, f"an argument of {what}") for kind in kinds])


def type_hints(fn: Callable[..., Any], what: str) -> dict[str, Any]:
    """The annotations of a function. Raises NotSerialisable for one that cannot be looked up."""
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise NotSerialisable(
            f"{what} has an annotation that cannot be looked up ({error}): define or import the type at module level, "
            f"outside `if TYPE_CHECKING`"
        ) from error
    return {name: type(None) if hint is None else hint for name, hint in hints.items()}
