"""
The API calls that only a cluster can answer.

A single server has no peers and no leader to elect, so it names the missing cluster, in
nats-server's words. Calls about servers, the meta leader and other accounts' streams (`META.>`,
`SERVER.>`, `ACCOUNT.>`) get no answer, as in nats-server.
"""

from __future__ import annotations

from penstock.errors import JetStreamError
from penstock.jetstream.api.api import Answer, ApiRequest, Call
from penstock.protocol import errorcodes


def refuse(request: ApiRequest) -> Answer:
    """Answer that there is no cluster."""
    raise JetStreamError(errorcodes.CLUSTER_REQUIRED)


CALLS = {
    ("STREAM", "LEADER", "STEPDOWN"): Call("stream_leader_stepdown", 1, refuse),
    ("STREAM", "PEER", "REMOVE"): Call("stream_remove_peer", 1, refuse),
    ("STREAM", "PEER", "EVACUATE"): Call("stream_evacuate_peer", 1, refuse),
    ("STREAM", "CANCEL_MOVE"): Call("stream_cancel_move", 1, refuse),
    ("CONSUMER", "LEADER", "STEPDOWN"): Call("consumer_leader_stepdown", 2, refuse),
}
