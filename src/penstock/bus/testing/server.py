"""A Penstock server as a process of its own, which can be killed and comes back."""

from __future__ import annotations

from pathlib import Path

from penstock.net.process import PENSTOCK, ServerProcess


class PenstockServer(ServerProcess):
    """A server with JetStream on a free loopback port. Use with `with`."""

    def __init__(self, directory: str | Path) -> None:
        store = str(Path(directory) / "store")
        super().__init__(PENSTOCK, "", "-js", "-sd", store, directory=directory)
