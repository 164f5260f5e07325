"""What the files of right and wrong calls call."""

from __future__ import annotations

from batuta import Query, Signal, Update, job, workflow


@workflow
async def order(sku: str, count: int) -> float:
    return len(sku) * count / 2


@workflow
async def ship(to: str, days: int = 3) -> str:
    return to * days


@workflow
async def pack(*skus: str) -> int:
    return len(skus)


@workflow
async def tick() -> None:
    return None


@workflow
async def report(rows: list[str], *, title: str = "") -> str:
    return title.join(rows)


@job
async def mail(to: str, copies: int = 1) -> bool:
    return bool(to) and copies > 0


@job(priority=5)
def resize(path: str) -> bytes:
    return path.encode()


approve = Signal("approve", bool)
wake = Signal("wake")
rename = Update("rename", str)


@Update
def add_item(sku: str, count: int = 1) -> float: ...  # type: ignore[empty-body]


@Query
def total(currency: str) -> int: ...  # type: ignore[empty-body]
