"""Benchmarks: Penstock and nats-server side by side, on the machine at hand."""
