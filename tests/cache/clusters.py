"""A cluster of two Valkey servers, whose slots can move."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from batuta.testing.valkey import ValkeyServer
from tests.cache.until import until


class Cluster:
    def __init__(self, url: str, nodes: "tuple[Redis, Redis]") -> None:
        self.url, self.nodes = url, nodes

    async def move_slot_of(self, key: str, *, lose: bool = False) -> None:
        """The other node gets the slot of this key. `lose`: all values of the node that had it are lost."""
        one, two = self.nodes
        slot = int(await one.execute_command("CLUSTER", "KEYSLOT", key))
        owner, target = (one, two) if slot < 8192 else (two, one)
        if lose:
            await owner.flushall()
        target_id = (await target.execute_command("CLUSTER", "MYID")).decode()
        for node in (target, owner):
            await node.execute_command("CLUSTER", "SETSLOT", str(slot), "NODE", target_id)


@asynccontextmanager
async def two_nodes() -> AsyncIterator[Cluster]:
    clustered = ("cluster-enabled", "yes")
    with ValkeyServer(clustered) as first, ValkeyServer(clustered, password=first.password) as second:
        async with (
            Redis(port=first.port, password=first.password) as one,
            Redis(port=second.port, password=first.password) as two,
        ):
            await one.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
            await two.execute_command("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
            await two.execute_command("CLUSTER", "SET-CONFIG-EPOCH", "2")
            await one.execute_command("CLUSTER", "MEET", "127.0.0.1", str(second.port))

            async def both_are_up() -> bool:
                infos = [str(await node.execute_command("CLUSTER", "INFO")) for node in (one, two)]
                return all("cluster_state:ok" in info and "cluster_known_nodes:2" in info for info in infos)

            await until(both_are_up)
            url = f"redis+cluster://:{first.password}@127.0.0.1:{first.port},127.0.0.1:{second.port}"
            yield Cluster(url, (one, two))
