"""A Penstock server as a process of its own, which can be killed and comes back."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

READY_TIMEOUT_S = 20.0
HOST = "127.0.0.1"


class PenstockServer:
    """A server with JetStream on a free loopback port. Use with `with`."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._log = self._directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> PenstockServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Where clients connect to; the same after a restart."""
        return f"nats://{HOST}:{self.port}"

    @property
    def log(self) -> str:
        """The log since its last start."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start it, on the port and with the streams it had before."""
        assert self._process is None, "it runs already"
        command = [sys.executable, "-m", "penstock", "serve"]
        command += ["-a", HOST, "-p", str(self.port or -1)]
        command += ["-js", "-sd", str(self._directory / "store")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.port = self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill it, as a crash would. What was acked is on the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> int:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while "Server is ready" not in self.log:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the server did not start:\n{self.log}")
            time.sleep(0.01)
        found = re.search(r"Listening for client connections on \S+:(\d+)", self.log)
        assert found is not None
        return int(found[1])
