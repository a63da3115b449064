"""
Hello: a NATS server in this process, and a client that talks to it.

Any other NATS client can talk to it as well: the server listens on a real port.

Output:
    hello: world
    hello: again, world
"""

import asyncio

import penstock


async def greet(server: penstock.Server) -> None:
    async with await penstock.connect(server.url) as client:
        subscription = await client.subscribe("greetings.*")
        await client.publish("greetings.hello", b"world")
        await client.publish("greetings.hello", b"again, world")
        for _ in range(2):
            message = await subscription.next(timeout_s=5)
            print(f"{message.subject.split('.')[1]}: {message.payload.decode()}")


async def main() -> None:
    async with penstock.Server() as server:
        await greet(server)


asyncio.run(main())
