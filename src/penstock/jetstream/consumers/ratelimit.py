"""
A limit on the bytes that a consumer delivers per second.

A message takes its size out of a bucket that holds one message of the largest size, and waits until
the bucket holds enough.
"""

from __future__ import annotations

from penstock.hot.wire import Op
from penstock.protocol.times import SECOND_NS
from penstock.protocol.tokenbucket import TokenBucket


class DeliveryRate:
    """The bucket of one consumer."""

    def __init__(self, bits_per_second: int, burst_bytes: int) -> None:
        self.bits_per_second = bits_per_second
        self.due_ns = 0
        """When the next message may be delivered; 0 is now."""
        self._burst_bytes = burst_bytes
        self._bucket = TokenBucket(max(bits_per_second // 8, 1) / SECOND_NS, burst=burst_bytes)

    def admit(self, operations: list[Op], now_ns: int) -> list[Op]:
        """Return the first messages, as many as may be delivered now."""
        for index, (_, subject, reply, _, size, _) in enumerate(operations):
            needed = min(len(subject) + len(reply) + size, self._burst_bytes)
            wait_ns = self._bucket.wait(needed, now_ns)
            if wait_ns > 0:
                self.due_ns = now_ns + int(wait_ns) + 1
                return operations[:index]
            self._bucket.take(needed, now_ns)
        return operations

    def release(self, now_ns: int) -> None:
        """Let messages through again once it is time."""
        if self.due_ns <= now_ns:
            self.due_ns = 0
