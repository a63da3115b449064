"""A query in a process of its own, made to be killed: copies one stream into another."""

import sys

from penstock.spark import session

QUIET = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
}


def main() -> None:
    """Copy what is there, in small batches, and end."""
    master, servers, source, target, checkpoint = sys.argv[1:]
    spark = session("copier", master=master, settings=QUIET)
    spark.sparkContext.setLogLevel("OFF")
    print("copying", flush=True)
    messages = (
        spark.readStream.format("penstock")
        .option("servers", servers)
        .option("stream", source)
        .option("maxMessagesPerTrigger", 250)
        .option("minPartitions", 2)
        .load()
    )
    query = (
        messages.selectExpr(f"replace(subject, '{source}.', '{target}.') AS subject", "data")
        .writeStream.format("penstock")
        .option("servers", servers)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
