"""Consumers: deliveries and acks."""
