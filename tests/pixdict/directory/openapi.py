"""Checks XML documents against the official OpenAPI file: the schema of an operation, applied to the parsed XML.

What the file gets wrong, or has older than the version that we implement, is corrected here, each with its reason.
"""

import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
from lxml import etree
from msgspec import json

FILE = Path(__file__).parent / "data" / "dict-openapi-2.6.1.json"
OUR_NAMES = {"listPolicies": "bucketStates"}
DS = "{http://www.w3.org/2000/09/xmldsig#}"


class Mismatch(AssertionError):
    """A document that is not as the file says."""


@cache
def official() -> dict[str, Any]:
    document: dict[str, Any] = json.decode(FILE.read_bytes())
    schemas = document["components"]["schemas"]
    # The text has categories A to H, the enumeration A to F only.
    schemas["PolicyCategory"] = {"type": "string", "enum": list("ABCDEFGH")}
    # Since 2.12.1 identifiers of participants and accounts may have letters, and there is one more type of account.
    schemas["ISPB"]["pattern"] = "^[0-9a-zA-Z]{8}$"
    schemas["BrazilianAccount"]["properties"]["AccountNumber"]["pattern"] = "^[0-9a-zA-Z]{1,20}$"
    schemas["AccountType"] = {"type": "string", "enum": ["CACC", "TRAN", "SLRY", "SVGS", "OTHR"]}
    # `SPI` is required, the property is called `Spi`.
    for name in ("PersonStatistics", "KeyStatistics"):
        schemas[name]["required"] = ["Spi" if one == "SPI" else one for one in schemas[name]["required"]]
    # A text with an attribute: OpenAPI has no way to say it.
    schemas["ExtendedKey"] = {
        "type": "object",
        "properties": {
            "#text": {"type": "string", "maxLength": 77},
            "hasEntry": {"type": "boolean", "xml": {"attribute": True}},
        },
        "required": ["#text", "hasEntry"],
    }
    return document


@cache
def operations() -> dict[str, dict[str, Any]]:
    """Each operation by its id, with its method and path."""
    return {
        operation["operationId"]: operation | {"method": method.upper(), "path": path}
        for path, methods in official()["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
    }


def operation(name: str) -> dict[str, Any]:
    return operations()[OUR_NAMES.get(name, name)]


def examples(name: str) -> dict[str, list[bytes]]:
    """The documents of an operation that the file shows: "request", "200", "201"."""
    found = operation(name)
    contents = {"request": found.get("requestBody", {})} | found["responses"]
    return {
        key: [
            example["value"].strip().encode()
            for media in part.get("content", {}).values()
            for example in media.get("examples", {}).values()
        ]
        for key, part in contents.items()
    }


def check(name: str, status: int, content_type: str, body: bytes) -> None:
    """Raises Mismatch unless an answer of that operation may look like this."""
    root = etree.fromstring(body)
    if status >= 400:
        # The file declares few of the statuses that operations answer with: any problem may come from any of them.
        kind, schema = "application/problem+xml", "Problem"
        if root.tag != "{urn:ietf:rfc:7807}problem":
            raise Mismatch(f"the root of a problem is {root.tag}")
    else:
        declared = operation(name)["responses"].get(str(status))
        if declared is None:
            raise Mismatch(f"{name} does not answer with {status}")
        kind, schema = "application/xml", declared["content"]["application/xml"]["schema"]["$ref"].split("/")[-1]
        if root.tag != schema:
            raise Mismatch(f"the root of {name} is {root.tag}, not {schema}")
    if content_type.split(";", maxsplit=1)[0] != kind:
        raise Mismatch(f"the media type is {content_type}, not {kind}")
    check_schema(schema, root)


def check_schema(name: str, root: Any) -> None:
    """Raises Mismatch unless an element is as the schema of that name says."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    value = _value(root, schema, name)
    validator = jsonschema.Draft202012Validator(schema | official(), format_checker=_FORMATS)
    wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]
    if wrong:
        raise Mismatch("; ".join(wrong))


def _merged(schema: dict[str, Any]) -> dict[str, Any]:
    """One flat schema of references, `allOf` and `oneOf`: what the children of an element are."""
    if "$ref" in schema:
        return _merged(official()["components"]["schemas"][schema["$ref"].split("/")[-1]])
    merged = {key: value for key, value in schema.items() if key not in ("allOf", "oneOf")}
    for part in map(_merged, [*schema.get("allOf", []), *schema.get("oneOf", [])]):
        merged["properties"] = part.get("properties", {}) | merged.get("properties", {})
        for key, value in part.items():
            merged.setdefault(key, value)
    return merged


def _value(element: Any, schema: dict[str, Any], where: str) -> Any:
    """The JSON value of an element. Elements that the schema does not know are mistakes."""
    flat = _merged(schema)
    properties = flat.get("properties") or {}
    if not properties and flat.get("type") != "array":
        return _leaf(element.text or "", flat)
    if flat.get("type") == "array":
        return [_value(child, flat["items"], f"{where}[]") for child in element]
    found: dict[str, Any] = {}
    if "#text" in properties:
        found["#text"] = element.text or ""
    for name, inner in properties.items():
        if _merged(inner).get("xml", {}).get("attribute") and name in element.attrib:
            found[name] = _leaf(element.attrib[name], _merged(inner))
    if unknown := set(element.attrib) - set(properties):
        raise Mismatch(f"{where} has unknown attributes {unknown}")
    for child in element:
        name = etree.QName(child).localname
        if name not in properties:
            raise Mismatch(f"{where} has an unknown element {name}")
        if name in found:
            raise Mismatch(f"{where} has {name} twice")
        found[name] = {} if child.tag in ("Signature", f"{DS}Signature") else _value(child, properties[name], name)
    return found


def _leaf(text: str, schema: dict[str, Any]) -> Any:
    match schema.get("type"):
        case "integer":
            return int(text) if re.fullmatch(r"-?[0-9]+", text) else text
        case "boolean":
            return {"true": True, "false": False}.get(text, text)
        case _:
            return text


_FORMATS = jsonschema.FormatChecker(formats=())


@_FORMATS.checks("date-time", raises=ValueError)
def _is_time(value: object) -> bool:
    return re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", str(value)) is not None and bool(
        datetime.fromisoformat(str(value))
    )


@_FORMATS.checks("uuid", raises=ValueError)
def _is_uuid(value: object) -> bool:
    return str(UUID(str(value))) == value


@_FORMATS.checks("uri")
def _is_uri(value: object) -> bool:
    return str(value).startswith("https://dict.pi.rsfn.net.br/api/v2/error/")
