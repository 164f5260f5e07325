"""The schema and the reference are those of the format: write them again with `python -m tests.flows.test_schema`."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from batuta.flows.expressions import FUNCTIONS
from batuta.flows.schema import _ARGUMENTS, json_schema, reference
from tests.flows.every import STEPS
from tests.flows.kit import DONE, OVERDUE, step

DOCS = Path(__file__).parents[2] / "docs" / "flows"
PAGES = {"reference.md": reference, "flow-1.schema.json": lambda: json.dumps(json_schema(), indent=1) + "\n"}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_that_of_the_format(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "python -m tests.flows.test_schema"


def test_every_function_says_how_it_is_called() -> None:
    assert set(_ARGUMENTS) == set(FUNCTIONS)


@pytest.mark.parametrize("steps", [OVERDUE, STEPS])
def test_sound_flows_fit_the_schema(steps: Any) -> None:
    jsonschema.validate({"name": "x", "trigger_type": "a", "steps": steps}, json_schema())


@pytest.mark.parametrize(
    "steps", [[], [step("a", "wat"), DONE], [step("a", "action", urll=1), DONE], [{"key": "a b", "type": "end"}, DONE]]
)
def test_broken_flows_do_not(steps: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "x", "steps": steps}, json_schema())


if __name__ == "__main__":
    for page, make in PAGES.items():
        (DOCS / page).write_text(make())
