"""Webhooks: an event is signed, tried again while the receiver is away, and arrives under one id.

Prints:
    received order.paid {'order': 17}
    attempt 1 failed
    attempt 2 failed
    attempt 3 was answered
    received order.paid {'order': 17}
"""

import asyncio
import json

import batuta
from batuta import Retry
from batuta.webhooks import AddressPolicy, SafeHttpClient, verify_webhook

seen: list[str] = []


class Receiver:
    """What your customer runs. It is away for the first two requests."""

    def __init__(self) -> None:
        self.requests = 0
        self.secret = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests += 1
        status = 503 if self.requests <= 2 else 204
        if status == 204:
            seen.append(verify_webhook(headers, body, [self.secret]))
            event = json.loads(body)
            print("received", event["type"], event["data"])
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()


async def main() -> None:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    here = SafeHttpClient(AddressPolicy(["127.0.0.1"]))  # this machine is refused unless it is allowed
    async with server, batuta.connect("memory://") as client, here, client.worker(webhooks=here):
        endpoint = await client.webhooks.create(f"http://127.0.0.1:{port}/hooks", types=["order.*"])
        receiver.secret = endpoint.secret
        soon = Retry(attempts=5, first=0.1)
        [delivery] = await client.webhooks.send("order.paid", {"order": 17}, id="order-17-paid", retry=soon)
        await delivery.result()
        for attempt in await delivery.attempts():
            print("attempt", attempt.number, "failed" if attempt.error else "was answered")
        await (await client.webhooks.resend(delivery.id)).result()
        assert seen == ["order-17-paid"] * 2
        assert await client.webhooks.send("claim.opened", {}) == []  # no endpoint takes it


asyncio.run(main())
