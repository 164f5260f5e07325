"""A cache in Redis or Valkey: one server, Sentinel or Cluster."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from batuta.cache.backend import CacheInfo
from batuta.cache.keys import lock_key
from batuta.durations import fields_in_seconds
from batuta.errors import InvalidInput, InvalidURL, MissingExtra
from batuta.names import check_number

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.cluster import RedisCluster

T = TypeVar("T")

log = logging.getLogger("batuta.cache")

# KEYS: value, lock. Scripts keep to one slot of a cluster: `lock_key` sees to that.
_PUT: Final = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) redis.call('DEL', KEYS[2]) return 1"
_PUT_LOADED: Final = (
    "if redis.call('GET', KEYS[2]) ~= ARGV[3] then return 0 end "
    "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) redis.call('DEL', KEYS[2]) return 1"
)
_UNLOCK: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_LOOK: Final = "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}"
# A counter without a lifetime, left by another program, gets one as well. None begins below 0.
_COUNT: Final = (
    "if tonumber(ARGV[1]) < 0 and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end "
    "local n = redis.call('INCRBY', KEYS[1], ARGV[1]) "
    "if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return n"
)
_ADD: Final = (
    "for i = 2, #ARGV do redis.call('SADD', KEYS[1], ARGV[i]) end return redis.call('PEXPIRE', KEYS[1], ARGV[1])"
)
_FORMS: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")


class RedisOptions(Struct, frozen=True, kw_only=True):
    """How connections are made. Times are seconds or timedeltas."""

    pool_size: int = 100
    """Connections at once; to each node, in a cluster."""
    min_idle: int = 10
    """Connections that are opened at the beginning, and kept."""
    retries: int = 3
    """Further tries of an operation whose connection failed."""
    dial_timeout: float = 5.0
    read_timeout: float = 3.0
    """For an operation: sending it, the reply, and what has to be done first or again."""
    pool_timeout: float = 4.0
    """How long an operation waits for a free connection."""
    ca_file: str | None = None
    """Certificates to trust, with `rediss://`; the system's without it."""

    def __post_init__(self) -> None:
        fields_in_seconds(self, "dial_timeout", "read_timeout", "pool_timeout")
        for name in ("dial_timeout", "read_timeout", "pool_timeout"):
            check_number(name, getattr(self, name), 0.001)
        for name, least in (("pool_size", 1), ("min_idle", 0), ("retries", 0)):
            check_number(name, getattr(self, name), least, whole=True)
        if self.min_idle > self.pool_size:
            raise InvalidInput(f"min_idle={self.min_idle} must be at most pool_size={self.pool_size}")


class RedisCache:
    """Values in Redis. `connect` makes one.

    The password stands in the URL, in `BATUTA_REDIS_PASSWORD`, or in the file that `BATUTA_REDIS_PASSWORD_FILE` names.
    That of Sentinels stands in `BATUTA_REDIS_SENTINEL_PASSWORD`, or in such a file.
    """

    def __init__(
        self, client: Redis | RedisCluster, options: RedisOptions, where: str, *, bounded: bool = False
    ) -> None:
        self._client: Any = client
        self._options, self._bounded = options, bounded
        self._places = asyncio.Semaphore(options.pool_size)
        self.where = where

    def __repr__(self) -> str:
        return f"RedisCache({self.where!r})"

    @classmethod
    async def connect(
        cls,
        url: str,
        options: RedisOptions | None = None,
        env: Mapping[str, str] | None = None,
        *,
        bounded: bool = False,
    ) -> RedisCache:
        """Open connections. A Redis that is away now is used when it comes back. `bounded`: callers bound the time of
        values' operations themselves, which saves a timer for each. Raises InvalidURL, MissingExtra."""
        options = options or RedisOptions()
        address = _address(url)
        try:
            known = os.environ if env is None else env
            client = _client(
                address, options, _password(address, known), _secret(known, "BATUTA_REDIS_SENTINEL_PASSWORD")
            )
        except ImportError:
            raise MissingExtra("a cache in Redis", "redis") from None
        where = f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"
        found = cls(client, options, where, bounded=bounded)
        await found._open_idle()
        return found

    async def _open_idle(self) -> None:
        async def ping() -> None:
            async with asyncio.timeout(self._options.dial_timeout + self._options.read_timeout):
                await self._client.ping()

        answers = await asyncio.gather(*(ping() for _ in range(self._options.min_idle)), return_exceptions=True)
        if (failed := next((one for one in answers if isinstance(one, Exception)), None)) is not None:
            log.warning("%r is not reachable, the cache is empty until it is: %r", self, failed)

    # -- values

    async def get(self, key: str) -> bytes | None:
        found: bytes | None = await self._ask([key], self._client.get, key)
        return found

    async def get_with_lifetime(self, key: str) -> tuple[bytes, float] | None:
        value, left = await self._script(_LOOK, [key])
        return None if value is None else (value, left / 1000)

    async def put(self, key: str, value: bytes, lifetime: float) -> None:
        await self._script(_PUT, [key, lock_key(key)], value, _millis(lifetime))

    async def put_loaded(self, key: str, value: bytes, lifetime: float, token: str) -> bool:
        return bool(await self._script(_PUT_LOADED, [key, lock_key(key)], value, _millis(lifetime), token))

    async def lock(self, key: str, token: str, lifetime: float) -> bool:
        return bool(await self._do(self._client.set, lock_key(key), token, nx=True, px=_millis(lifetime)))

    async def unlock(self, key: str, token: str) -> None:
        await self._script(_UNLOCK, [lock_key(key)], token)

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            await self._do(self._client.delete, key, lock_key(key))

    async def count(self, key: str, amount: int, lifetime: float) -> int:
        return int(await self._script(_COUNT, [key], amount, _millis(lifetime)))

    async def add_members(self, key: str, members: Iterable[str], lifetime: float) -> None:
        await self._script(_ADD, [key], _millis(lifetime), *members)

    async def remove_members(self, key: str, members: Iterable[str]) -> None:
        await self._ask([key], self._client.srem, key, *members)

    async def members(self, key: str) -> set[str]:
        return {member.decode(errors="replace") for member in await self._ask([key], self._client.smembers, key)}

    async def look(self, key: str) -> tuple[bytes | set[str], float | None] | None:
        """The value or set under a key, and its lifetime if it has one. Changes nothing.
        Raises InvalidInput for what no cache writes."""
        kind: bytes = await self._do(self._client.type, key)
        if kind not in (b"string", b"set", b"none"):
            raise InvalidInput(f"{key!r} holds a {kind.decode()}, which Batuta does not write")
        found = await self._do(self._client.smembers if kind == b"set" else self._client.get, key)
        if not found and kind != b"string":
            return None
        left = await self._do(self._client.pttl, key)
        value = {one.decode(errors="replace") for one in found} if kind == b"set" else found or b""
        return value, left / 1000 if left >= 0 else None

    # -- the server itself

    async def info(self) -> CacheInfo:
        async with asyncio.timeout(self._options.read_timeout):
            nodes = [await one for one in self._of_nodes("info")]
            keys = sum([await one for one in self._of_nodes("dbsize")])
        return CacheInfo(
            kind="redis",
            keys=keys,
            memory_used=sum(int(node["used_memory"]) for node in nodes),
            memory_max=sum(int(node.get("maxmemory", 0)) for node in nodes),
            evicted=sum(int(node["evicted_keys"]) for node in nodes),
            hits=sum(int(node.get("keyspace_hits", 0)) for node in nodes),
            misses=sum(int(node.get("keyspace_misses", 0)) for node in nodes),
        )

    def _of_nodes(self, command: str) -> list[Awaitable[Any]]:
        primaries = getattr(self._client, "get_primaries", None)
        if primaries is None:
            return [getattr(self._client, command)()]
        return [getattr(self._client, command)(target_nodes=node) for node in primaries()]

    async def without_lifetime(self, limit: int) -> list[str]:
        found: list[str] = []
        scan = self._client.scan_iter(count=500)
        while len(found) < limit:
            async with asyncio.timeout(self._options.read_timeout):
                if (key := await self._do(anext, scan, None)) is None:
                    break
                if await self._do(self._client.pttl, key) == -1:
                    found.append(key.decode(errors="replace"))
        return found

    async def close(self) -> None:
        await self._client.aclose()
        pool = getattr(self._client, "connection_pool", None)
        if pool is None:
            return
        await pool.disconnect()  # of Sentinel: the client leaves it open
        for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
            await sentinel.aclose()

    # -- every command passes here

    async def _script(self, text: str, keys: list[str], *args: bytes | str | int) -> Any:
        from redis.exceptions import NoScriptError

        try:
            return await self._ask(keys, self._client.evalsha, _digest(text), len(keys), *keys, *args)
        except NoScriptError:
            return await self._ask(keys, self._client.eval, text, len(keys), *keys, *args)

    async def _ask(self, keys: list[str], command: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Do it. What another program has left under these keys is dropped if it is of another kind: else one such
        key would pass for a Redis that fails."""
        try:
            return await self._do(command, *args)
        except Exception as error:
            if not _is_of_others(error):
                raise
            log.warning("%r has a value of another kind under a key of Batuta, and it is deleted: %s", self, error)
            await self._do(self._client.delete, *keys)
            return await self._do(command, *args)

    async def _do(self, command: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        if self._places.locked():
            async with asyncio.timeout(self._options.pool_timeout):
                await self._places.acquire()
        else:
            await self._places.acquire()
        try:
            if self._bounded:
                return await command(*args, **options)
            async with asyncio.timeout(self._options.read_timeout):
                return await command(*args, **options)
        finally:
            self._places.release()


_digests: Final = {
    text: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    for text in (_PUT, _PUT_LOADED, _UNLOCK, _LOOK, _COUNT, _ADD)
}
_digest = _digests.__getitem__


def _millis(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _is_of_others(error: Exception) -> bool:
    """Whether Redis is well, and a key holds what none of our commands has written."""
    from redis.exceptions import ResponseError

    kinds = ("WRONGTYPE", "value is not an integer", "would overflow")
    return isinstance(error, ResponseError) and any(kind in str(error) for kind in kinds)


# -- addresses


def _address(url: str) -> SplitResult:
    try:
        address = urlsplit(url)
        _hosts(address)
    except ValueError as error:
        raise InvalidURL(f"the address of a Redis is not a URL: {error}") from None
    if address.scheme not in _FORMS or not address.netloc:
        raise InvalidURL(
            "the address of a Redis must be redis://host:6379/0 (rediss:// with TLS), "
            "redis+sentinel://host:26379,host2:26379/master/0 or redis+cluster://host:6379,host2:6379"
        )
    return address


def _hosts(address: SplitResult) -> list[tuple[str, int]]:
    usual = 26379 if "sentinel" in address.scheme else 6379
    hosts = []
    for one in address.netloc.rpartition("@")[2].split(","):
        split = urlsplit(f"//{one}")
        hosts.append((split.hostname or "localhost", split.port or usual))
    return hosts


def _password(address: SplitResult, env: Mapping[str, str]) -> str | None:
    return unquote(address.password) if address.password else _secret(env, "BATUTA_REDIS_PASSWORD")


def _secret(env: Mapping[str, str], variable: str) -> str | None:
    if path := env.get(f"{variable}_FILE"):
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise InvalidInput(f"{variable}_FILE cannot be read: {error}") from None
    return env.get(variable) or None


def _client(
    address: SplitResult, options: RedisOptions, password: str | None, sentinel_password: str | None
) -> Redis | RedisCluster:
    from redis.asyncio import Redis
    from redis.asyncio.cluster import ClusterNode, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import ExponentialWithJitterBackoff

    hosts = _hosts(address)
    path = [unquote(part) for part in address.path.split("/") if part]
    given: dict[str, Any] = {
        "username": unquote(address.username) if address.username else None,
        "password": password,
        "socket_connect_timeout": options.dial_timeout,
        "socket_timeout": None,  # `_do` bounds an operation: a timer for each part of it costs as much as the rest
        "max_connections": options.pool_size,
        "retry": Retry(ExponentialWithJitterBackoff(base=0.008, cap=0.5), options.retries),
        "protocol": 3,
    }
    tls = {"ssl": True, "ssl_ca_certs": options.ca_file} if address.scheme.startswith("rediss") else {}
    given |= tls
    if address.scheme.endswith("+cluster"):
        if path:
            raise InvalidURL(f"a Redis Cluster has no databases: leave {address.path!r} out of its address")
        return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in hosts], **given)
    if address.scheme.endswith("+sentinel"):
        if not path:
            raise InvalidURL("the address of Sentinels names the master: redis+sentinel://host:26379/mymaster/0")
        watched = Sentinel(  # type: ignore[no-untyped-call]
            hosts,
            sentinel_kwargs={"socket_connect_timeout": options.dial_timeout, "password": sentinel_password} | tls,
            **given,
        )
        master: Redis = watched.master_for(path[0], db=_database(path[1:]))
        return master
    if len(hosts) != 1:
        raise InvalidURL("several hosts: write redis+sentinel:// or redis+cluster://")
    return Redis(host=hosts[0][0], port=hosts[0][1], db=_database(path), health_check_interval=30, **given)


def _database(path: list[str]) -> int:
    if len(path) > 1 or (path and not path[0].isdecimal()):
        raise InvalidURL(f"the database of a Redis is a number, not {'/'.join(path)!r}")
    return int(path[0]) if path else 0
