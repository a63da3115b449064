"""The clock of leases: it keeps running while the process is frozen or the machine is suspended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

elapsed_s: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds since some moment in the past."""
