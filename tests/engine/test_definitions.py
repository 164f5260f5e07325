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
        with pytest.raises(InvalidInput, match="is a generator and has no result"):
            activity(function)


@pytest.mark.parametrize("entries", [0, -1, "many", 1.5, None])
def test_a_length_of_a_journal_that_cannot_be_is_refused(entries: Any) -> None:
    with pytest.raises(InvalidInput, match="continue_after="):
        workflow(continue_after=entries)(echo)


def test_a_workflow_is_no_method() -> None:
    async def flow(self: str, order: str) -> None: ...

    assert workflow(flow).name == "flow"  # a function may name its argument as it likes
    with pytest.raises(InvalidInput, match=r"Shop.checkout' is a method, and a run has no instance to be 'self'"):

        class Shop:
            @workflow
            async def checkout(self, order: str) -> None: ...

    with pytest.raises(InvalidInput, match="to be 'cls'"):

        class Till:
            @workflow
            async def checkout(cls, order: str) -> None: ...  # noqa: N805 - as of a classmethod

    class Works:
        @staticmethod
        @workflow
        async def checkout(order: str) -> str:
            return order

        @workflow
        async def nightly() -> None: ...  # nothing could be its instance

        borrowed = workflow(flow)

    assert Works.checkout.name == "checkout"


@pytest.mark.parametrize("first", ["this", "_self", "klass", "*args"])
def test_a_workflow_is_no_method_whatever_its_instance_is_called(first: str) -> None:
    source = f"class Shop:\n    @workflow\n    async def checkout({first}, **more): ..."
    with pytest.raises((InvalidInput, RuntimeError)) as refused:  # Python 3.11 wraps what `__set_name__` raises
        exec(source, {"workflow": workflow})
    error = refused.value if isinstance(refused.value, InvalidInput) else refused.value.__cause__
    assert isinstance(error, InvalidInput)
    assert f"'Shop.checkout' is a method, and a run has no instance to be {first.lstrip('*')!r}" in str(error)
