"""Which Penstock this is, and which nats-server clients may take it for."""

VERSION = "0.1.0"

NATS_VERSION = "2.14.0"
"""Clients switch features on by this number, so it is only as high as what is really there."""
