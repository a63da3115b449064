"""A query in a process of its own, made to be killed: copies one stream into another."""

import sys

from pyspark.sql.functions import expr

from penstock.spark import session

QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
}


def main() -> None:
    """Copy what is there, in batches of a size, and end."""
    master, servers, source, target, checkpoint, batch_messages = sys.argv[1:]
    spark = session("copier", master=master, settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    messages = (
        spark.readStream.format("penstock")
        .option("servers", servers)
        .option("stream", source)
        .option("maxMessagesPerTrigger", batch_messages)
        .option("minPartitions", 2)
        .load()
    )
    query = (
        messages.withColumn("subject", expr(f"replace(subject, '{source}.', '{target}.')"))
        .drop("headers", "time")
        .writeStream.format("penstock")
        .option("servers", servers)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
