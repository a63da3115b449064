"""Measuring NATS servers: scenarios, processes that load, reports, comparisons, history."""
