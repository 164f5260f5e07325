"""Redis over TLS: the certificate must be of a known authority and for the name that was asked for."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from batuta.cache import RedisCache, RedisOptions
from batuta.testing.valkey import ValkeyServer
from tests.cache.test_failures import _watch
from tests.certificates import write_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate for `localhost` that signs itself."""
    return write_certificate(tmp_path_factory.mktemp("tls") / "localhost.pem", "localhost")


@asynccontextmanager
async def behind_tls(port: int, certificate: Path) -> AsyncIterator[int]:
    """The port of a front that speaks TLS, for a server that does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, ours), pass_on(theirs, writer))

    front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield front.sockets[0].getsockname()[1]
    finally:
        front.close()


def options(certificate: Path | None) -> RedisOptions:
    return RedisOptions(min_idle=0, retries=0, ca_file=None if certificate is None else str(certificate))


# covers C-07
async def test_values_pass_over_tls_to_a_server_with_the_right_certificate(
    valkey: ValkeyServer, certificate: Path
) -> None:
    async with behind_tls(valkey.port, certificate) as port:
        backend = await RedisCache.connect(f"rediss://:{valkey.password}@localhost:{port}/0", options(certificate))
        await backend.put("tls:value", b"1", 60)
        assert await backend.get("tls:value") == b"1"
        await backend.close()


@pytest.mark.parametrize(("host", "knows"), [("localhost", False), ("127.0.0.1", True)])
async def test_an_unsigned_certificate_or_one_of_another_name_is_refused(
    valkey: ValkeyServer, certificate: Path, host: str, knows: bool
) -> None:
    async with behind_tls(valkey.port, certificate) as port:
        given = options(certificate if knows else None)
        backend = await RedisCache.connect(f"rediss://:{valkey.password}@{host}:{port}/0", given)
        with pytest.raises(RedisConnectionError, match="certificate verify failed"):
            await backend.get("tls:value")
        await backend.close()


async def test_sentinels_are_asked_over_tls_and_with_their_own_password(certificate: Path) -> None:
    with (
        ValkeyServer() as master,
        ValkeyServer(("requirepass", "guarded"), sentinel=True, password="guarded") as watch,
    ):
        await _watch(watch, master, replicas=False)
        async with behind_tls(watch.port, certificate) as port:
            url = f"rediss+sentinel://:{master.password}@localhost:{port}/mymaster/0"
            env = {"BATUTA_REDIS_SENTINEL_PASSWORD": "guarded"}
            backend = await RedisCache.connect(url, options(certificate), env)
            assert await backend._client.connection_pool.get_master_address() == ("127.0.0.1", master.port)
            await backend.close()
