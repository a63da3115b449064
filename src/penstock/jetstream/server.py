"""JetStream of one server: an engine and an API for each account that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.jetstream.api import clusterapi, consumerapi, snapshotapi, streamapi
from penstock.jetstream.api.api import Api
from penstock.jetstream.engine import UNLIMITED, JetStreamEngine

if TYPE_CHECKING:
    from penstock.config.accounts import JetStreamLimits
    from penstock.core.account import Account
    from penstock.jetstream.copies.remote import Remote
    from penstock.jetstream.files.streamfiles import StreamFiles
    from penstock.jetstream.shared import Shared

CALLS = streamapi.CALLS | snapshotapi.CALLS | consumerapi.CALLS | clusterapi.CALLS


class JetStreamAccounts:
    """The accounts of one server that have JetStream."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.engines: dict[str, JetStreamEngine] = {}
        self._apis: dict[str, Api] = {}

    def add(
        self,
        account: Account,
        files: StreamFiles,
        *,
        limits: JetStreamLimits = UNLIMITED,
        remotes: Mapping[str, Remote] | None = None,
    ) -> JetStreamEngine:
        """Give an account JetStream, which stays closed until `open`."""
        engine = JetStreamEngine(account, self.shared, files=files, limits=limits, remotes=remotes)
        self.engines[account.name] = engine
        self._apis[account.name] = Api(engine, CALLS)
        return engine

    def open(self, name: str) -> None:
        """Bring back the streams of an account and start listening. Blocks."""
        self.engines[name].open()
        self._apis[name].open()

    def close(self) -> None:
        """Make everything durable and close it. Blocks; no commit may be under way."""
        self.shared.crew.close()
        for engine in self.engines.values():
            engine.close()
