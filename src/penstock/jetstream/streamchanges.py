"""Changes of a stream that take more than one commit: its deletion, and the end of a restore."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from penstock.jetstream.commit import Change
from penstock.jetstream.store.values import Work

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream


class Deletion(Change):
    """
    A deleted stream until it cannot come back. A `commit.Durable`.

    The store is closed when a commit begins: then no other commit is under way that could still use
    its files.
    """

    def __init__(
        self,
        stream: Stream,
        done: Callable[[Exception | None], None],
        *,
        last: Callable[[], None] | None,
    ) -> None:
        self._stream = stream
        super().__init__(lambda: None, done, last=last)

    def begin_commit(self) -> Work:
        """Close the files."""
        with suppress(Exception):
            # Messages it could not save are about to be removed anyway.
            self._stream.store.discard()
            if self._stream.consumer_files is not None:
                self._stream.consumer_files.discard()
        return self


class RestoreEnd(Change):
    """
    A restored stream, until a crash cannot take a part of it. A `commit.Durable`.

    First everything becomes durable, by as many commits as that takes; then the mark is removed
    that says that more may come.
    """

    def __init__(self, stream: Stream, done: Callable[[Exception | None], None]) -> None:
        self._stream = stream
        self._is_safe = False
        super().__init__(partial(stream.context.files.restored, stream.name), done)

    def begin_commit(self) -> Work | None:
        """Remove the mark, once it is time."""
        return self if self._is_safe and not self._stream.is_closed else None

    def end_commit(self) -> None:
        """Report the end of the restore, or check whether the mark may go now."""
        error = _failure(self._stream)
        if error is not None or self._is_safe:
            self._done(error or self._error)
            return
        self._is_safe = _is_safe(self._stream)
        self._stream.context.touch(self)


def _failure(stream: Stream) -> Exception | None:
    """Return why a stream, or its consumers, cannot be kept."""
    if stream.is_closed:
        return OSError("the stream was deleted")
    files = stream.consumer_files
    failure = stream.store.failure or (files.log.failure if files is not None else None)
    return None if failure is None else OSError(failure)


def _is_safe(stream: Stream) -> bool:
    """Tell whether all of a stream and of its consumers is as durable as it gets."""
    store, files = stream.store, stream.consumer_files
    is_synced = store.durable_position >= store.position or not stream.context.waits_for_sync
    return is_synced and (files is None or files.is_idle)
