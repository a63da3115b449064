"""
Penstock in Spark: streams as DataFrames, in batch and streaming, and DataFrames into streams.

    from penstock.spark import register, session

    spark = session("orders")
    orders = spark.read.format("penstock").option("stream", "ORDERS").load()
"""

from penstock.spark.envelopes.envelope import open_envelopes
from penstock.spark.register import register, session

__all__ = ["open_envelopes", "register", "session"]
