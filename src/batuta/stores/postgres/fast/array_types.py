"""Array types that the driver need not ask the server about.

The driver knows types such as `uuid`, but asks on every new connection what `uuid[]` is. The answer takes the server
about 5 ms, which is more than all other statements of a short connection together. The numbers of these types are
constants of PostgreSQL.
"""

from __future__ import annotations

from typing import Any

ARRAYS = {"bool": (16, 1000), "int8": (20, 1016), "int4": (23, 1007), "uuid": (2950, 2951)}
"""Numbers of each type and of its array, as in the server's table `pg_type`."""


def declare_arrays(connection: Any) -> None:
    """Tell the driver of these types. If its internals are not as we know them, it asks the server, as always."""
    settings = getattr(getattr(connection, "_protocol", None), "get_settings", lambda: None)()
    register = getattr(settings, "register_data_types", None)
    if register is not None:
        register([_array(name, *numbers) for name, numbers in ARRAYS.items()])


def _array(name: str, element: int, number: int) -> dict[str, Any]:
    """A row of the driver's own question."""
    unused = dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames"))
    row = {"oid": number, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", "elemtype": element, "elemdelim": ","}
    return row | unused
