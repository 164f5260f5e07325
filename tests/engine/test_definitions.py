"""Options that cannot be followed are refused where they are given."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from batuta import InvalidInput, Retry, activity, workflow


async def echo(text: str) -> str:
    return text


def test_a_retry_that_would_not_be_followed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="once=True has one attempt"):
        activity(once=True, retry=Retry(attempts=5))
    with pytest.raises(InvalidInput, match="once=True has one attempt"):
        activity(once=True)(echo).with_options(retry=Retry())
    assert activity(retry=Retry(attempts=5))(echo).with_options(once=True).options.once
    assert activity(once=True, retry=Retry(attempts=1))(echo).options.once


def test_an_activity_that_yields_is_refused_at_definition() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1

    def numbers() -> Iterator[int]:
        yield 1

    for function in (items, numbers):
        with pytest.raises(InvalidInput, match="yields, and has no result"):
            activity(function)


@pytest.mark.parametrize("entries", [0, -1, "many", 1.5, None])
def test_a_length_of_a_journal_that_cannot_be_is_refused(entries: Any) -> None:
    with pytest.raises(InvalidInput, match="continue_after="):
        workflow(continue_after=entries)(echo)
