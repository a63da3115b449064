"""
Orders of the event bus as tables: a Spark Declarative Pipeline.

Every run updates `orders` from the stream, computes the total of each customer, and
publishes the large orders on `shop.large`, each once.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.spark import open_envelopes, register

spark = SparkSession.active()
register(spark)
SERVERS = spark.conf.get("spark.orders.servers")


def amounts(messages: DataFrame) -> DataFrame:
    """
    Return the customers and amounts of orders: a function of a DataFrame, as `penstock
    pipeline` takes.
    """
    events = open_envelopes(messages, "amount DOUBLE")
    return events.selectExpr("event_id", "aggregate_id AS customer", "payload.amount AS amount")


@dp.table
def orders() -> DataFrame:
    """Every order, once."""
    reader = spark.readStream.format("penstock").option("servers", SERVERS)
    return amounts(reader.option("stream", "shop").option("subjects", "shop.orders.>").load())


@dp.materialized_view
def spent() -> DataFrame:
    """The total of each customer."""
    return spark.read.table("orders").groupBy("customer").agg(f.sum("amount").alias("spent"))


dp.create_sink("large", "penstock", {"servers": SERVERS, "subject": "shop.large"})


@dp.append_flow(target="large")
def large_orders() -> DataFrame:
    """Orders of more than 1000."""
    large = spark.readStream.table("orders").where("amount > 1000")
    # The stream has stored the order itself with `event_id` as its message id.
    return large.selectExpr(
        "to_json(struct(*)) AS data", "concat('large-', event_id) AS message_id"
    )
