"""
The latency of answers to other accounts, published as a metric to the service's account.

The export decides which requests are measured: a share of them, or those with a sampled
trace. In that case the metric carries the headers of the trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.config.accounts import Latency
from penstock.core.account import Account
from penstock.core.reports.clientinfo import client_account, client_info
from penstock.protocol import headers, times

if TYPE_CHECKING:
    from penstock.core.session import Session

TYPE = "io.nats.server.metric.v1.service_latency"
ALWAYS = 100
TRACED_BYTES_MAX = 16 * 1024
"""Longer headers are not searched for a trace."""
BAD_REQUEST = (400, "Bad Request")
UNAVAILABLE = (503, "Service Unavailable")
TIMEOUT = (504, "Service Timeout")

Headers = dict[str, list[str]]


class Measured(NamedTuple):
    """A request whose answer is measured."""

    subject: bytes
    requestor: dict[str, Any]
    header: Headers
    start_ns: int


def measured(
    latency: Latency,
    header: bytes,
    publisher: Session,
    *,
    share: bool,
    chance: Callable[[], float],
) -> Measured | None:
    """Return the measurement for a request; None if the request is not sampled."""
    found: Headers | None = {}
    if chance() * ALWAYS >= latency.sampling:
        found = traced(_parsed(header)) if len(header) <= TRACED_BYTES_MAX else None
    if found is None:
        return None
    requestor = client_info(publisher) if share else client_account(publisher)
    now_ns = publisher.broker.clock_ns()
    return Measured(latency.subject.encode(), requestor, found, now_ns)


def tell(
    account: Account,
    request: Measured,
    new_id: Callable[[], str],
    clock_ns: Callable[[], int],
    *,
    failure: tuple[int, str] | None = None,
    responder: Session | None = None,
) -> None:
    """Publish the metric of a request."""
    now_ns = clock_ns()
    waited_ns = request.requestor.get("rtt", 0)
    document: dict[str, Any] = {
        "type": TYPE,
        "id": new_id(),
        "timestamp": times.timestamp(now_ns),
        "status": failure[0] if failure else 200,
        "description": failure[1] if failure else "",
        "requestor": request.requestor,
        "responder": client_info(responder) if responder is not None else None,
        "header": request.header,
    }
    document = {name: value for name, value in document.items() if value}
    took_ns = now_ns - request.start_ns if not failure else 0
    answering_ns = responder.round_trip_ns if responder is not None else 0
    document |= {
        "start": times.timestamp(request.start_ns - waited_ns),
        "service": max(took_ns - answering_ns, 0),
        "system": 0,
        "total": took_ns + waited_ns if not failure else 0,
    }
    account.send(request.subject, json.dumps(document, separators=(",", ":")).encode())


def traced(found: Headers) -> Headers | None:
    """Return the headers of a sampled trace; None if there is no such trace."""
    first = {name: values[0] for name, values in found.items()}
    if "Uber-Trace-Id" in first:
        flags = first["Uber-Trace-Id"].split(":")
        also = [name for name in found if name.startswith("Uberctx-")]
        is_wanted = len(flags) == 4 and _is_odd(flags[3])
        return _some(found, "Uber-Trace-Id", *also) if is_wanted else None
    if first.get("X-B3-Sampled") == "1" or (
        "X-B3-Traceid" in first and first.get("X-B3-Sampled") != "0"
    ):
        names = ("X-B3-Sampled", "X-B3-Traceid", "X-B3-Parentspanid", "X-B3-Spanid")
        return _some(found, *names)
    if "X-B3-Sampled" not in first and "B3" in first:
        parts = first["B3"].split("-")
        is_denied = parts == ["0"] or parts[2:3] == ["0"]
        return None if is_denied else _some(found, "B3")
    if "Traceparent" in first:
        parts = first["Traceparent"].split("-")
        is_wanted = len(parts) == 4 and len(parts[3]) == 2 and _is_odd(parts[3])
        return _some(found, "Traceparent", "Tracestate") if is_wanted else None
    return None


def _some(found: Headers, *names: str) -> Headers:
    return {name: found[name] for name in names if name in found}


def _is_odd(flags: str) -> bool:
    try:
        return bool(int(flags, 16) & 1)
    except ValueError:
        return False


def _parsed(header: bytes) -> Headers:
    """Return headers with their names as Go writes them: `X-B3-Traceid`."""
    found: Headers = {}
    for name, value in headers.decode(header) if header else ():
        canonical = "-".join(part.capitalize() for part in name.split("-"))
        found.setdefault(canonical, []).append(value)
    return found
