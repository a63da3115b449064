"""
Event sourcing: an account is the sum of its events, and Spark keeps the balances as a
table.

The service folds the events into its own memory and answers from there. The projection is
the same fold, run by Spark over the stream: exactly once, in order, snapshot after
snapshot.

Output:
    the service: account-0 has 60, account-1 has 30
    the table:   account-0 has 60, account-1 has 30
    and later:   account-0 has 60, account-1 has 130
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import penstock
from penstock.bus import Envelope, EventBus
from penstock.spark import session
from penstock.spark.pipelines import runner
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.snapshot import read_snapshot


def fold(balance: dict[str, Any] | None, event: dict[str, Any]) -> dict[str, Any]:
    """Return the balance after one more event."""
    sign = {"deposited": 1, "withdrawn": -1}[event["event_type"]]
    before = balance["amount"] if balance else 0
    return {"amount": before + sign * event["payload"]["amount"]}


class Accounts:
    """The service: it publishes the events of accounts, and handles them to know the balances."""

    def __init__(self, url: str) -> None:
        self._bus = EventBus.open(url, namespace="bank", service="accounts")
        self._handled = 0
        self._progress = asyncio.Event()
        self.balances: dict[str, dict[str, Any]] = {}

    async def run(self, happenings: list[tuple[str, str, int]]) -> None:
        """Publish the events, and return once they are handled."""
        async with self._bus as bus:
            await bus.subscribe_envelope("accounts", self._handle)
            for account, what, amount in happenings:
                event = Envelope(aggregate_id=account, event_type=what, payload={"amount": amount})
                await bus.publish_envelope("accounts", event)
            while self._handled < len(happenings):
                self._progress.clear()
                await self._progress.wait()

    async def _handle(self, event: Envelope[Any]) -> None:
        happened = {"event_type": event.event_type, "payload": event.payload}
        known = self.balances.get(event.aggregate_id)
        self.balances[event.aggregate_id] = fold(known, happened)
        self._handled += 1
        self._progress.set()


def project(url: str, home: Path) -> dict[str, dict[str, Any]]:
    """Update the table, and return it; events folded before are not read again."""
    config = PipelineConfig(
        pipeline="state",
        source={"servers": url, "stream": "bank"},
        target=str(home / "balances"),
        checkpoint=str(home / "checkpoint"),
        settings={"fold": "__main__:fold"},
    )
    runner.run(spark, config, once=True, say=lambda line: None)
    rows = read_snapshot(spark, config.target).collect()
    return {row["aggregate_id"]: json.loads(row["state"]) for row in rows}


def shown(balances: dict[str, dict[str, Any]]) -> str:
    return ", ".join(f"{name} has {one['amount']}" for name, one in sorted(balances.items()))


if __name__ == "__main__":
    happenings = [
        ("account-0", "deposited", 100),
        ("account-1", "deposited", 50),
        ("account-0", "withdrawn", 40),
        ("account-1", "withdrawn", 20),
    ]
    with (
        tempfile.TemporaryDirectory() as directory,
        penstock.serve(
            jetstream=penstock.JetStreamConfig(store_dir=f"{directory}/jetstream")
        ) as server,
    ):
        accounts = Accounts(server.url)
        asyncio.run(accounts.run(happenings))
        print(f"the service: {shown(accounts.balances)}")
        spark = session("bank", settings={"spark.ui.enabled": "false"})
        print(f"the table:   {shown(project(server.url, Path(directory)))}")
        asyncio.run(Accounts(server.url).run([("account-1", "deposited", 100)]))
        print(f"and later:   {shown(project(server.url, Path(directory)))}")
        spark.stop()
