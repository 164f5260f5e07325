"""A Bridge as a gRPC server, with health and reflection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from batuta import Batuta
from batuta.cache import Cache
from batuta.clock import Clock
from pixdict.bridge import service
from pixdict.bridge.calls import Calls
from pixdict.bridge.directory import DirectoryClient
from pixdict.bridge.messages import LARGEST
from pixdict.bridge.settings import BridgeSettings
from pixdict.errors import InvalidArgument
from pixdict.proto import bridge_pb2, bridge_pb2_grpc

_SERVICES: tuple[tuple[str, Callable[[Any, Any], None], type[Any]], ...] = (
    ("RateLimits", bridge_pb2_grpc.add_RateLimitsServicer_to_server, service.RateLimits),
    ("Entries", bridge_pb2_grpc.add_EntriesServicer_to_server, service.Entries),
    ("Claims", bridge_pb2_grpc.add_ClaimsServicer_to_server, service.Claims),
    ("Reconciliation", bridge_pb2_grpc.add_ReconciliationServicer_to_server, service.Reconciliation),
)


class Bridge:
    """A Bridge that is open: `serve` gives it."""

    def __init__(self, calls: Calls, address: str) -> None:
        self.calls, self.address = calls, address


@asynccontextmanager
async def serve(
    settings: BridgeSettings,
    batuta: Batuta,
    *,
    address: str = "127.0.0.1:0",
    cache: Cache | None = None,
    clock: Clock | None = None,
    grace: float = 5.0,
) -> AsyncIterator[Bridge]:
    """Listen at `address` (port 0: any that is free) while the context is open. `batuta` is open. Calls under way have
    `grace` seconds at the end. Raises InvalidArgument when it cannot listen there."""
    async with DirectoryClient(settings) as directory:
        calls = Calls(directory, batuta, settings, cache=cache, clock=clock)
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", LARGEST), ("grpc.so_reuseport", 0)])
        checks = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        names = [bridge_pb2.DESCRIPTOR.services_by_name[name].full_name for name, _, _ in _SERVICES]
        for _, add, kind in _SERVICES:
            add(kind(calls, settings), server)
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise InvalidArgument(f"the Bridge cannot listen at {address}: {error}") from error
        await server.start()
        for name in ("", *names):
            await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        try:
            yield Bridge(calls, f"{address.rpartition(':')[0]}:{port}")
        finally:
            await checks.enter_graceful_shutdown()
            await server.stop(grace)
            await calls.close()
