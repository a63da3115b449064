"""The whole of Penstock on one machine: broker, event bus, Spark, and a checked report."""
