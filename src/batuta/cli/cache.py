"""`batuta cache`: look at a cache in Redis, and clean it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click
from msgspec import json

from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import Answers, json_option
from batuta.cli.common.redaction import shown_text
from batuta.clock import SystemClock
from batuta.errors import BatutaError, StoreUnavailable

if TYPE_CHECKING:
    from batuta.cache import CacheInfo, EntityUse, RedisCache

T = TypeVar("T")

cache = LazyGroup(
    "cache",
    {
        "check": ("batuta.cli.cache:check", "Find keys without a lifetime."),
        "delete": ("batuta.cli.cache:delete", "Delete values, so that they are loaded anew."),
        "entities": ("batuta.cli.cache:entities", "Show hits and misses by entity."),
        "info": ("batuta.cli.cache:info", "Show keys, memory and evictions."),
        "show": ("batuta.cli.cache:show", "Show a value and its remaining lifetime."),
    },
    help="Look at a cache in Redis or Valkey, and clean it.",
)

with_redis = click.option(
    "--redis-url",
    envvar="BATUTA_REDIS_URL",
    required=True,
    metavar="URL",
    help="redis://host:6379/0, or rediss://, redis+sentinel://, redis+cluster://. Default: BATUTA_REDIS_URL.",
)


@click.command()
@with_redis
@json_option
def info(redis_url: str, as_json: bool) -> None:
    """Show how the server is doing: keys, memory, and values that it dropped for lack of memory."""
    found: CacheInfo = _ask(redis_url, lambda redis: redis.info())
    limit = f"{found.memory_max:,}" if found.memory_max else "no limit"
    said = f"keys     {found.keys:,}\nmemory   {found.memory_used:,} bytes of {limit}\nevicted  {found.evicted:,}"
    Answers(as_json).tell(found, said)


@click.command()
@with_redis
@json_option
def entities(redis_url: str, as_json: bool) -> None:
    """Show hits and misses by entity: of all processes that use the cache now, since each of them began."""
    from batuta.cache.uses import uses_of

    found: list[EntityUse] = _ask(redis_url, lambda redis: uses_of(redis, SystemClock().now()))
    columns = ("entity", "hits", "looks", "absent", "mean", "failed")
    none = "no process has reported hits in the last minutes"
    Answers(as_json).show_rows({"entities": found}, columns, map(_use_row, found), none=none)


@click.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="The most keys to list.")
@with_redis
@json_option
def check(redis_url: str, limit: int, as_json: bool) -> None:
    """Find keys without a lifetime: they stay for ever. Exits with 1 if there are any."""
    found = _ask(redis_url, lambda redis: redis.without_lifetime(limit))
    said = "\n".join(found) if found else "every key has a lifetime"
    Answers(as_json).tell({"without_lifetime": found}, said)
    if found:
        raise SystemExit(1)


@click.command()
@click.argument("key")
@with_redis
@json_option
def show(redis_url: str, key: str, as_json: bool) -> None:
    """Show the value of KEY, decompressed, or its set, and the seconds until it ends."""
    from batuta.cache.values import inflate

    found = _ask(redis_url, lambda redis: redis.look(key))
    if found is None:
        raise click.ClickException(f"no value under {key!r}")
    value, left = found
    data = json.encode(sorted(value)) if isinstance(value, set) else inflate(value, "the value")
    text = data.decode(errors="replace")
    note = "it has no lifetime" if left is None else f"ends in {left:.0f} s"
    document = {"key": key, "value": text, "seconds_left": left}
    Answers(as_json).show(document, lambda: shown_text(text), note=note)


@click.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@with_redis
@json_option
def delete(redis_url: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Delete the values under these keys. They are loaded anew at the next read."""
    _ask(redis_url, lambda redis: redis.delete(keys))
    Answers(as_json).answer({"deleted": keys}, lambda _: None)


def _use_row(one: EntityUse) -> tuple[str, ...]:
    looks = one.hits + one.absent + one.misses
    share = f"{(one.hits + one.absent) / looks:.1%}" if looks else ""
    mean = f"{1_000 * one.seconds / looks:.2f} ms" if looks else ""
    return one.entity, share, f"{looks:,}", f"{one.absent:,}", mean, f"{one.failed:,}"


def _ask(url: str, work: Callable[[RedisCache], Awaitable[T]]) -> T:
    from batuta.cache import RedisCache, RedisOptions

    async def ask() -> T:
        redis = await RedisCache.connect(url, RedisOptions(min_idle=0, retries=0))
        try:
            return await work(redis)
        except BatutaError:
            raise
        except Exception as error:
            raise StoreUnavailable(f"{redis!r} cannot be used: {error}") from error
        finally:
            await redis.close()

    return asyncio.run(ask())
