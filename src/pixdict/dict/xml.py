"""XML of messages: structs to elements and back.

A struct is an element, its fields are child elements in their order, absent ones (None) are left out. A list is an
element with one child for each item. Annotations of a field say what differs: `Attribute`, `Text`, `items("Claim")`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from lxml import etree
from msgspec import Meta, Struct

from pixdict.dict import problems

SIGNATURE = "{http://www.w3.org/2000/09/xmldsig#}Signature"
MAX_BYTES = 1024 * 1024
"""Longest document that is read."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Element = etree._Element
S = TypeVar("S", bound=Struct)


class InvalidXml(ValueError):
    """A document that cannot be read. The message says what is wrong and where."""


Attribute = Meta(extra={"xml": "attribute"})
Text = Meta(extra={"xml": "text"})


def items(name: str) -> Meta:
    """Of a list: the name of the element of each item."""
    return Meta(extra={"xml": name})


def parse(data: bytes) -> Element:
    """The root of a document. No entities, no document type, nothing from other places is read.

    Raises InvalidXml.
    """
    if len(data) > MAX_BYTES:
        raise InvalidXml(f"the document has {len(data)} bytes; at most {MAX_BYTES} are read")
    if b"<!DOCTYPE" in data:
        raise InvalidXml("a document type is not allowed")
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=False
    )
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise InvalidXml(f"this is no well-formed XML: {error}") from None
    if root.getroottree().docinfo.internalDTD is not None:  # in an encoding where the bytes above look different
        raise InvalidXml("a document type is not allowed")
    return root


def serialised(root: Element) -> bytes:
    """A document of UTF-8 with its declaration."""
    return etree.tostring(root, xml_declaration=True, encoding="UTF-8")


def to_bytes(message: Struct) -> bytes:
    """The document of a message, unsigned."""
    return serialised(to_element(message))


def from_bytes(kind: type[S], data: bytes, *, strict: bool = False) -> S:
    """The message of a document. Raises InvalidXml. See `from_element`."""
    return from_element(kind, parse(data), strict=strict)


def to_element(message: Struct) -> Element:
    """The element of a message."""
    plan = _plan(type(message))
    # The stubs know no default namespace.
    root = etree.Element(plan.tag, nsmap={None: plan.namespace} if plan.namespace else None)  # type: ignore[dict-item]
    _write(root, message, plan)
    return root


def from_element(kind: type[S], root: Element, *, strict: bool = False) -> S:
    """The message of an element. `strict` refuses elements that the message does not have: a directory does so with
    requests, while a client must live with new fields of answers. Raises InvalidXml."""
    plan = _plan(kind)
    if root.tag != plan.tag:
        raise InvalidXml(f"expected the element {plan.tag}, got {root.tag}")
    try:
        return msgspec.convert(_read(root, plan, strict, plan.tag), kind)
    except msgspec.ValidationError as error:
        raise InvalidXml(str(error)) from None


class _Field(NamedTuple):
    name: str
    key: str
    """The name in the document."""
    tag: str
    place: str
    """element, attribute, text or list"""
    item: str
    """Of a list: the tag of its items."""
    read: Callable[[str], Any]
    inner: _Plan | None


class _Plan(NamedTuple):
    tag: str
    namespace: str
    fields: tuple[_Field, ...]
    children: dict[str, _Field]


@cache
def _plan(kind: type[Struct], namespace: str | None = None, tag: str | None = None) -> _Plan:
    if namespace is None:
        namespace = problems.NAMESPACE if kind is problems.Problem else ""
        tag = "problem" if kind is problems.Problem else kind.__name__
    hints = get_type_hints(kind, include_extras=True)
    fields = tuple(
        _field(field.name, field.encode_name, hints[field.name], namespace) for field in msgspec.structs.fields(kind)
    )
    children = {field.tag: field for field in fields if field.place in ("element", "list")}
    return _Plan(_qualified(namespace, tag or kind.__name__), namespace, fields, children)


def _qualified(namespace: str, name: str) -> str:
    return f"{{{namespace}}}{name}" if namespace else name


def _field(name: str, key: str, hint: Any, namespace: str) -> _Field:
    hint, place = _stripped(hint)
    tag = _qualified(namespace, key)
    if get_origin(hint) is list:
        inner, _ = _stripped(get_args(hint)[0])
        item = _qualified(namespace, place or inner.__name__)
        plan = _plan(inner, namespace, inner.__name__) if _is_struct(inner) else None
        return _Field(name, key, tag, "list", item, _reader(inner), plan)
    plan = _plan(hint, namespace, hint.__name__) if _is_struct(hint) else None
    return _Field(name, key, tag, place or "element", "", _reader(hint), plan)


def _stripped(hint: Any) -> tuple[Any, str]:
    """The type of a hint without None and annotations, and what an annotation says of its place."""
    place = ""
    while True:
        if get_origin(hint) is Annotated:
            for meta in hint.__metadata__:
                place = (meta.extra or {}).get("xml", place)
            hint = hint.__origin__
        elif get_origin(hint) in (Union, types.UnionType):
            [hint] = [one for one in get_args(hint) if one is not type(None)]
        else:
            return hint, place


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _reader(kind: Any) -> Callable[[str], Any]:
    """Space around a text belongs to it, as in the name that a CID is made of; around a number or time it does not."""
    readers: dict[Any, Callable[[str], Any]] = {int: _int, bool: _bool, str: str}
    return readers.get(kind, str.strip)


def _int(text: str) -> int | str:
    text = text.strip()
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text


def _bool(text: str) -> bool | str:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.strip(), text)


def _read(element: Element, plan: _Plan, strict: bool, where: str) -> dict[str, Any]:
    """The values of an element by their names in the document; their types are checked afterwards."""
    values: dict[str, Any] = {}
    for field in plan.fields:
        if field.place == "attribute" and (value := element.get(field.key)) is not None:
            values[field.key] = field.read(value)
        elif field.place == "text":
            values[field.key] = _text(element, where)
    for child in element:
        found = plan.children.get(child.tag)
        if found is None:
            if strict and not isinstance(child, etree._Comment) and child.tag not in (SIGNATURE, "Signature"):
                is_instruction = isinstance(child, etree._ProcessingInstruction)
                what = "processing instruction" if is_instruction else f"element {child.tag}"
                raise InvalidXml(f"unknown {what} in {where}")
            continue
        if found.key in values:
            raise InvalidXml(f"element {found.key} occurs twice in {where}")
        values[found.key] = _read_field(child, found, strict, f"{where}/{found.key}")
    return values


def _read_field(element: Element, field: _Field, strict: bool, where: str) -> Any:
    if field.place == "list":
        if strict and any(child.tag != field.item for child in element if not isinstance(child, etree._Comment)):
            raise InvalidXml(f"unknown element in {where}: only {field.item} is allowed")
        children = element.findall(field.item)
        if field.inner is None:
            return [field.read(_text(child, where)) for child in children]
        return [_read(child, field.inner, strict, where) for child in children]
    if field.inner is not None:
        return _read(element, field.inner, strict, where)
    return field.read(_text(element, where))


def _text(element: Element, where: str) -> str:
    """The text of an element without children. An entity in it would be a child, and is refused."""
    if len(element):
        if any(not isinstance(child, etree._Comment) for child in element):
            raise InvalidXml(f"expected text in {where}")
        return "".join([element.text or "", *(child.tail or "" for child in element)])
    return element.text or ""


def _write(element: Element, message: Struct, plan: _Plan) -> None:
    for field in plan.fields:
        value = getattr(message, field.name)
        if value is None:
            continue
        if field.place == "attribute":
            element.set(field.key, _spelled(value))
        elif field.place == "text":
            _put(element, _spelled(value))
        elif field.place == "list":
            parent = etree.SubElement(element, field.tag)
            for item in value:
                _write_value(etree.SubElement(parent, field.item), item, field)
        else:
            _write_value(etree.SubElement(element, field.tag), value, field)


def _write_value(element: Element, value: Any, field: _Field) -> None:
    if field.inner is None:
        _put(element, _spelled(value))
    else:
        _write(element, value, field.inner)


def _put(element: Element, text: str) -> None:
    """A problem tells what was wrong, such as a NUL in a path: XML has no such character, not even escaped."""
    try:
        element.text = text
    except ValueError:
        element.text = _NOT_XML.sub("\ufffd", text)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return spelled_time(value) if isinstance(value, datetime) else str(value)


def spelled_time(moment: datetime) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
