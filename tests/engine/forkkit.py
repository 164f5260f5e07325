"""What tests of forks are made of: activities that fail when they are told to, and what they have done."""

from batuta import (
    Retry,
    Signal,
    Update,
    activity,
    activity_info,
    workflow,
)
from batuta.testing import Environment
from batuta.verify import verify

executed: list[tuple[str, int]] = []
keys: dict[str, set[str]] = {}
broken: set[str] = set()
go = Signal("go", str)
add = Update("add", int)


def forget() -> None:
    """Nothing is done or broken yet."""
    executed.clear()
    keys.clear()
    broken.clear()


@activity(retry=Retry(attempts=1))
async def act(name: str, amount: int = 1) -> int:
    executed.append((name, amount))
    keys.setdefault(name, set()).add(activity_info().key)
    if name in broken:
        raise ConnectionError(f"{name} is down")
    return amount


@workflow
async def order(price: int) -> list[int]:
    return [await act("reserve", price), await act("charge", price * 2), await act("ship", price * 3)]


async def is_sound(env: Environment) -> None:
    report = await verify(env.store, env.workflows)
    assert not report.violations, report
