"""
Waiting for the broker when a bus opens.

A service often starts while its broker restarts, or holds an election. Once it is
connected it survives both; so must its start. An error that waiting cannot mend, such as
a wrong password, is raised at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from penstock.errors import (
    ConnectFailed,
    ConnectionLost,
    JetStreamError,
    PenstockError,
    RequestTimeout,
)
from penstock.protocol import errorcodes

logger = logging.getLogger("penstock.bus")

T = TypeVar("T")

WAIT_S = 0.1
WAIT_S_MAX = 5.0
UNAVAILABLE = 503
NOT_ENABLED = (errorcodes.NOT_ENABLED_FOR_ACCOUNT.err_code, errorcodes.NOT_ENABLED.err_code)
"""JetStream is not enabled, for the account or at all: waiting does not help."""


async def keep_trying(step: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
    """Run a step that needs the broker; repeat it for `timeout_s` while it is unreachable."""
    deadline_s, wait_s = monotonic() + timeout_s, WAIT_S
    while True:
        try:
            return await step()
        except PenstockError as error:
            left_s = deadline_s - monotonic()
            if left_s <= 0 or not may_pass(error):
                raise
            logger.warning(
                "! opening the bus: %s; tried again for %.0f s more (`connect_timeout`)",
                error,
                left_s,
            )
            await asyncio.sleep(min(wait_s, left_s))
            wait_s = min(wait_s * 2, WAIT_S_MAX)


def may_pass(error: PenstockError) -> bool:
    """Return whether the error only means that the broker cannot answer at the moment."""
    if isinstance(error, ConnectFailed):
        return not error.is_final
    if isinstance(error, JetStreamError):
        return error.code == UNAVAILABLE and error.err_code not in NOT_ENABLED
    return isinstance(error, RequestTimeout | ConnectionLost)
