"""What a wheel must be able to do, without any other package: run by cibuildwheel for each."""

from __future__ import annotations

import asyncio
import tempfile

import penstock
from penstock import hot


async def main() -> None:
    """Store a message and read it back, over a socket, with the compiled twins."""
    assert hot.COMPILED, "the wheel has no compiled part"
    with tempfile.TemporaryDirectory() as directory:
        settings = penstock.JetStreamConfig(store_dir=directory)
        async with penstock.Server(jetstream=settings) as server:
            async with await penstock.connect(server.url) as client:
                jetstream = client.jetstream()
                await jetstream.streams.create("S", subjects=["s"])
                ack = await jetstream.publish("s", b"stored")
                message = await jetstream.streams.get("S", seq=ack.sequence)
    assert message.payload == b"stored", message
    print("penstock", penstock.__version__, "stores and reads")


if __name__ == "__main__":
    asyncio.run(main())
