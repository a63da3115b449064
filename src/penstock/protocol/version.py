"""Which Penstock this is, and which nats-server clients may take it for."""

VERSION = "0.1.0"

NATS_VERSION = "2.15.1"
"""Clients switch features on by this number, so it is only as high as what is really there."""

FEATURE_FLAGS = {
    "js_ack_fc_v2": False,
    "js_api_reply_v2": False,
    "js_raft_delete_range": True,
    "js_snapshot_sources": False,
}
"""The switches of that nats-server, as they stand there unless told otherwise, and here."""

API_LEVEL = 5
"""
The JetStream API level, as high as what is there: 1 promises times to live, pauses and
priority groups, 2 counters, atomic batches and schedules, 4 fast batches, resets and acks
by flow control, 5 to tell sources that a stream was made anew.
"""
