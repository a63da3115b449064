"""
Running a service: open its bus, handle events until a signal says stop, close in order.

SIGTERM is what Docker, Kubernetes and systemd send, SIGINT is Ctrl-C. Either closes the
bus, which takes up to `shutdown_timeout`; a second one ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack

from penstock.bus.bus import EventBus
from penstock.bus.operate.exporter import Exporter
from penstock.bus.operate.failures import ENDINGS

logger = logging.getLogger("penstock.bus")

EXIT_FAILURE = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(bus: EventBus, *, host: str = "127.0.0.1", port: int | None = None) -> None:
    """
    Run a bus until SIGTERM or SIGINT, and close it.

    With a `port` it answers `/live`, `/ready` and `/metrics` there, from before the broker
    is reached until the last handler has ended.
    """
    with asyncio.Runner() as runner:
        try:
            runner.run(run_until_stopped(bus, host=host, port=port))
        except ENDINGS:
            # A handler ends the program. The others finish, as they do after a signal.
            runner.run(bus.close())
            raise
        finally:
            if bus.left_behind:
                _end_at_once(bus.left_behind)


def _end_at_once(left_behind: int) -> None:
    """End the process, even if a thread runs or a handler swallows its cancellation."""
    logger.error("! the process ends although %d handlers run", left_behind)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(EXIT_FAILURE)


async def run_until_stopped(
    bus: EventBus, *, host: str = "127.0.0.1", port: int | None = None
) -> None:
    """Like `run`, in a loop that is already running."""
    stop = _stop_signal()
    async with AsyncExitStack() as stack:
        if port is not None:
            await stack.enter_async_context(Exporter(bus, host=host, port=port))
        opening = asyncio.ensure_future(bus.__aenter__())
        await asyncio.wait((opening, stop), return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            return
        opening.result()
        stack.push_async_exit(bus)
        logger.info("= the bus is open")
        await stop
        logger.info("= the bus closes")


def _stop_signal() -> asyncio.Future[None]:
    """Return a future that ends with the first signal; the next one has its usual effect."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def stopped() -> None:
        for each in SIGNALS:
            loop.remove_signal_handler(each)
            # Also SIGINT: an exception would wait for handlers, as the first one does.
            signal.signal(each, signal.SIG_DFL)
        if not stop.done():
            stop.set_result(None)

    for each in SIGNALS:
        loop.add_signal_handler(each, stopped)
    return stop
