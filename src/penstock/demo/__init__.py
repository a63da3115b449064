"""The whole story on one machine: broker, event bus, Spark, and a report of what was checked."""
