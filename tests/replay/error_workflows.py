"""Workflows that meet errors, for journals that say what each was raised as."""

from decimal import Decimal
from enum import Enum
from typing import Any

from batuta import ActivityFailed, Retry, RetryLater, activity, activity_info, side_effect, workflow

ONE = Retry(attempts=1)


class Code(Enum):
    """Why."""

    LIMIT = "limit"


class PartnerError(Exception):
    """What a partner says."""

    def __init__(self, code: Code, amount: Decimal) -> None:
        super().__init__(code, amount)
        self.code, self.amount = code, amount


@activity(retry=ONE, raises=[PartnerError])
async def pays() -> None:
    raise PartnerError(Code.LIMIT, Decimal("4.20"))


@activity(retry=ONE)
async def imports_late() -> None:
    import wave

    raise wave.Error("no sound")


@activity(retry=Retry(attempts=2, first=1, jitter=0))
async def is_throttled() -> int:
    if activity_info().attempt == 1:
        raise RetryLater(600)
    return activity_info().attempt


@activity
async def says(words: str) -> str:
    return words


def looks() -> None:
    raise PartnerError(Code.LIMIT, Decimal(1))


@workflow
async def meets_errors() -> list[str]:
    said = []
    for call in (pays, imports_late):
        try:
            await call()
        except PartnerError as error:
            said.append(await says(f"{error.code} {error.amount + 1}"))
        except ActivityFailed as error:
            said.append(await says(f"{error.type} {error}"))
    try:
        await side_effect(looks)
    except PartnerError as error:
        said.append(await says(f"{error.amount + 1}"))
    return [*said, str(await is_throttled())]


ALL = [meets_errors]
ACTIVITIES: list[Any] = [pays, imports_late, is_throttled, says]
