"""
A limit on how many bytes a consumer delivers per second.

A bucket that fills as time passes and holds one message of the largest size: a
message takes its size out of it, and waits until there is enough in it.
"""

from __future__ import annotations

from penstock.hot.wire import Op
from penstock.protocol.times import SECOND_NS


class RateLimit:
    """The bucket of one consumer."""

    def __init__(self, bits_per_second: int, burst_bytes: int) -> None:
        self.bits_per_second = bits_per_second
        self.due_ns = 0
        """When the next message may be delivered; 0 if that is now."""
        self._bytes_per_second = max(bits_per_second // 8, 1)
        self._burst_bytes = burst_bytes
        self._level_bytes = float(burst_bytes)
        self._filled_ns = 0

    def admit(self, operations: list[Op], now_ns: int) -> list[Op]:
        """Return the first messages, as many as may be delivered now."""
        self._fill(now_ns)
        for index, (_, subject, reply, _, size, _) in enumerate(operations):
            needed = min(len(subject) + len(reply) + size, self._burst_bytes)
            missing = needed - self._level_bytes
            if missing > 0:
                self.due_ns = now_ns + int(missing * SECOND_NS / self._bytes_per_second) + 1
                return operations[:index]
            self._level_bytes -= needed
        return operations

    def release(self, now_ns: int) -> None:
        """Let messages through again, if it is time."""
        if self.due_ns <= now_ns:
            self.due_ns = 0

    def _fill(self, now_ns: int) -> None:
        if self._filled_ns:
            gained = (now_ns - self._filled_ns) * self._bytes_per_second / SECOND_NS
            self._level_bytes = min(self._level_bytes + gained, self._burst_bytes)
        self._filled_ns = now_ns
