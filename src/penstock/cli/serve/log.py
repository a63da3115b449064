"""
The log, line for line as nats-server writes it.

`[pid] 2026/11/15 06:29:16.911309 [INF] text` on standard error or in a file. Debug and
trace are switched on independently, which log levels alone cannot express.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TextIO

from penstock.config.server import ProcessConfig

TRACE = 5
LABELS = {
    logging.CRITICAL: "FTL",
    logging.ERROR: "ERR",
    logging.WARNING: "WRN",
    logging.INFO: "INF",
    logging.DEBUG: "DBG",
    TRACE: "TRC",
}


class LineFormatter(logging.Formatter):
    """Writes a record as one line of nats-server's log."""

    def __init__(self, *, logtime: bool, utc: bool) -> None:
        super().__init__()
        self._logtime = logtime
        self._clock = time.gmtime if utc else time.localtime

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one."""
        label = LABELS.get(record.levelno, record.levelname[:3])
        line = f"[{os.getpid()}] {self._time(record.created)}[{label}] {record.getMessage()}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line

    def _time(self, created: float) -> str:
        if not self._logtime:
            return ""
        seconds, microseconds = divmod(int(created * 1_000_000), 1_000_000)
        stamp = time.strftime("%Y/%m/%d %H:%M:%S", self._clock(seconds))
        return f"{stamp}.{microseconds:06d} "


class LogFile(logging.StreamHandler[TextIO]):
    """A log file that can be reopened, and that is rotated when it is full."""

    def __init__(self, path: str, *, bytes_max: int, files_max: int) -> None:
        super().__init__(_open(path))
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max

    def reopen(self) -> None:
        """Open the path again, after somebody has moved the file away."""
        old = self.setStream(_open(self._path))
        if old is not None:
            old.close()

    def close(self) -> None:
        """Close the file for good."""
        self.stream.close()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, then rotate the file if it is full."""
        super().emit(record)
        try:
            if 0 < self._bytes_max < os.fstat(self.stream.fileno()).st_size:
                self._rotate()
        except OSError:
            self.handleError(record)

    def _rotate(self) -> None:
        now = time.time_ns()
        stamp = time.strftime("%Y.%m.%d.%H.%M.%S", time.localtime(now // 10**9))
        os.rename(self._path, f"{self._path}.{stamp}.{now % 10**9:09d}")
        self.reopen()
        if self._files_max:
            from pathlib import Path

            path = Path(self._path)
            # The names sort by time.
            backups = sorted(path.parent.glob(f"{path.name}.*.*.*.*.*.*.*"), reverse=True)
            for backup in backups[self._files_max - 1 :]:
                backup.unlink(missing_ok=True)


def configure(process: ProcessConfig) -> None:
    """Send all log records where `process` says. May raise OSError."""
    handler: logging.Handler
    if process.log_file:
        handler = LogFile(
            process.log_file,
            bytes_max=process.log_size_limit,
            files_max=process.log_max_num,
        )
    else:
        handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(logtime=process.logtime, utc=process.logtime_utc))
    handler.addFilter(lambda record: process.debug or record.levelno != logging.DEBUG)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    level = TRACE if process.trace else logging.DEBUG if process.debug else logging.INFO
    logging.getLogger("penstock").setLevel(level)


def reopen() -> bool:
    """Reopen the log file. Return whether there is one."""
    files = [handler for handler in logging.getLogger().handlers if isinstance(handler, LogFile)]
    for file in files:
        file.reopen()
    return bool(files)


def _open(path: str) -> TextIO:
    return open(path, "a", encoding="utf-8", opener=_open_for_the_group)


def _open_for_the_group(path: str, flags: int) -> int:
    """Open a log as nats-server does: not readable by others, as it names users and addresses."""
    return os.open(path, flags | os.O_CLOEXEC, 0o640)
