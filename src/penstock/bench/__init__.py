"""Measure NATS servers: scenarios, load processes, reports, comparisons, history."""
