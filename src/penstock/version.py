"""Which Penstock this is, and which nats-server clients may take it for."""

VERSION = "0.1.0"

NATS_VERSION = "2.14.0"
"""Clients switch features on by this number, so it is only as high as what is really there."""

API_LEVEL = 5
"""
The JetStream API level, as high as what is there: 1 promises times to live, pauses and
priority groups, 2 counters, atomic batches and schedules, 4 fast batches, resets and acks
by flow control, 5 to tell sources that a stream was made anew.
"""
