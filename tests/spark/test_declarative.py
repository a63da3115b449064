"""
The declarative pipeline of the examples, run by Spark's own command.

It is run once, and with `SPARK_ROUNDS` above 1 again after more orders have come.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from tests.servers import ServerProcess
from tests.spark.conftest import SETTINGS, Broker, rows_of

from penstock.bus import Envelope, EventBus
from penstock.spark.java import ensure_java

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
COMMAND = Path(sys.executable).parent / "spark-pipelines"
RUNS = min(2, int(os.environ.get("SPARK_ROUNDS", "1")))
ORDERS, CUSTOMERS = 200, 5
LARGE = "shop.large"
COMPLETED = "Run is COMPLETED."
KNOWN_BUG = "[UNKNOWN_RESPONSE] Unknown response: Plan observed(__python_accumulator__"
"""SPARK-59135: PySpark 4.3.0 may stumble over the figures of Python workers once all is done."""

Ledger = list[tuple[str, str, float]]
"""Event id, customer, amount."""


@pytest.fixture
def server(servers: dict[str, ServerProcess]) -> ServerProcess:
    """Return Penstock."""
    return servers["penstock"]


async def publish(url: str, numbers: range) -> Ledger:
    """Publish orders; return what they were."""
    orders = [
        Envelope(
            aggregate_id=f"customer-{number % CUSTOMERS}",
            event_type="placed",
            payload={"amount": number * 10.0},
        )
        for number in numbers
    ]
    async with EventBus.open(url, namespace="shop") as bus:
        await bus.publish_envelope_batch("orders.placed", orders)
    return [(each.event_id, each.aggregate_id, each.payload["amount"]) for each in orders]


def run(home: Path, url: str) -> None:
    """Run the pipeline, with its tables and all it remembers below a directory."""
    shutil.copytree(EXAMPLE, home, dirs_exist_ok=True)
    spec = home / "spark-pipeline.yml"
    text = spec.read_text().replace("nats://127.0.0.1:4222", url)
    spec.write_text(text.replace("file:///lake", f"file://{home}/lake"))
    ensure_java()
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(home / "tables"),
        "spark.driver.extraJavaOptions": SETTINGS["spark.driver.extraJavaOptions"],
        "spark.ui.enabled": "false",
    }
    flags = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [str(COMMAND), "run", "--spec", str(spec), *flags],
        cwd=home,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    said = done.stdout + done.stderr
    assert COMPLETED in said, said[-4000:]
    assert done.returncode == 0 or KNOWN_BUG in said.partition(COMPLETED)[2], said[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(500 * RUNS + 100)
def test_the_example_makes_tables_of_a_stream_and_publishes(broker: Broker, tmp_path: Path) -> None:
    ledger: Ledger = []
    try:
        for number in range(RUNS):
            numbers = range(number * ORDERS, (number + 1) * ORDERS)
            ledger += asyncio.run(publish(broker.url, numbers))
            run(tmp_path, broker.url)
        published = [json.loads(data) for _, name, data in rows_of(broker, "shop") if name == LARGE]
    finally:
        broker.run(lambda js: js.streams.delete("shop"))
    orders = duckdb.sql(f"SELECT * FROM '{tmp_path}/tables/orders/*.parquet'").fetchall()
    spent = duckdb.sql(f"SELECT * FROM '{tmp_path}/tables/spent/*.parquet'").fetchall()

    assert sorted(ledger) == sorted(orders)
    assert {f"customer-{n}": _spent_by(ledger, f"customer-{n}") for n in range(CUSTOMERS)} == dict(
        spent
    )
    assert sorted(each for each in ledger if each[2] > 1000) == sorted(
        (each["event_id"], each["customer"], each["amount"]) for each in published
    )


def _spent_by(ledger: Ledger, customer: str) -> float:
    return sum(amount for _, name, amount in ledger if name == customer)
