"""
`$SYS.REQ.>`: requests and commands of the system account's users.

All views of the monitoring are here too, with a JSON object instead of a query. Other
accounts may only ask for their own connections and figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.core.account import Account
from penstock.core.reports.messagetrace import of_system
from penstock.core.reports.system import encode
from penstock.core.runs import payloads
from penstock.core.session import Session
from penstock.hot.wire import HEADER_BYTES, REPLY, SUBJECT, Op
from penstock.net.monitor import query
from penstock.net.monitor.query import Query, QueryError
from penstock.protocol import subjects

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched
    from penstock.net.system.systemviews import SystemViews, View

Json = dict[str, Any]

SERVER = "$SYS.REQ.SERVER."
ACCOUNT = "$SYS.REQ.ACCOUNT."
PING = "PING"
OWN = {
    "$SYS.REQ.SERVER.PING.CONNZ": "CONNZ",
    "$SYS.REQ.ACCOUNT.PING.CONNZ": "CONNZ",
    "$SYS.REQ.ACCOUNT.PING.STATZ": "STATZ",
}
"""Requests that any account may make about itself."""
NAMES = {
    "subscriptions": "subs",
    "account": "acc",
    "consumer": "consumers",
    "js_enabled_only": "js-enabled-only",
    "js_server_only": "js-server-only",
    "include_unused": "unused",
}
"""Options with another name in a query."""
TYPES: dict[str, type] = {
    **dict.fromkeys(("server_name", "host", "cluster"), str),
    "tags": list,
    "exact_match": bool,
    "cid": int,
}
"""The types of options that are checked here, and not by a view."""
STATES = ("open", "closed", "any")
BODY_BYTES_MAX = 16 * 1024
BAD_REQUEST = 400
FAILED = 500


class SystemRequests:
    """Answers requests of the system account, and of each account about itself."""

    def __init__(
        self,
        server: Watched,
        *,
        hears_claims: Callable[[str], bool],
        load_again: Callable[[], Callable[[], str] | None],
    ) -> None:
        """
        Prepare to answer, except for token requests that `hears_claims` takes.

        `load_again` returns the function that reloads the configuration; None without a
        file.
        """
        self._server = server
        self._hears_claims = hears_claims
        self._load_again = load_again
        self._broker = server.broker
        self._orders: dict[str, Callable[[Json], None]] = {
            "KICK": self._kick,
            "LDM": self._lame_duck,
            "RELOAD": self._reload,
        }

    @cached_property
    def _views(self) -> SystemViews:
        # Imported on the first request, so that the start of the server does not wait for it.
        from penstock.net.system.systemviews import SystemViews

        return SystemViews(self._server)

    def open(self) -> None:
        """Start listening."""
        system = self._broker.directory.system
        system.listen(b"$SYS.REQ.SERVER.>", self._on_server)
        system.listen(b"$SYS.REQ.ACCOUNT.>", self._on_account)
        self._broker.directory.install(self._install)

    def _install(self, account: Account) -> None:
        if account is not self._broker.directory.system:
            for subject, kind in OWN.items():
                to = f"$SYS.REQ.ACCOUNT.{account.name}.{kind}".encode()
                traced = of_system(account, self._on_own, to)
                account.listen(subject.encode(), self._on_own, traced=traced)

    def _on_server(self, batch: list[Op], publisher: Session | None) -> None:
        for subject, reply, body, publish in _requests(batch, SERVER):
            target, _, kind = subject.removeprefix(SERVER).partition(".")
            if target == PING and kind in ("", "STATSZ"):
                self._answer(reply, body, self._views.statsz)
            elif target not in (PING, self._broker.server_id):
                self._nobody(publish, publisher)
            elif kind == "IDZ":
                self._send(reply, self._id())
            elif kind == "STATSZ":
                self._answer(reply, body, self._views.statsz)
            elif kind in self._orders and target != PING:
                self._obey(reply, body, self._orders[kind])
            elif kind in self._views.of_server:
                self._view(reply, body, self._views.of_server[kind])
            else:
                self._nobody(publish, publisher)

    def _on_account(self, batch: list[Op], publisher: Session | None) -> None:
        for subject, reply, body, publish in _requests(batch, ACCOUNT):
            name, _, kind = subject.removeprefix(ACCOUNT).rpartition(".")
            if name.endswith(".CLAIMS") and self._hears_claims(kind):
                continue
            if (name, kind) == (PING, "STATZ"):
                self._view(reply, body, self._views.accstatz)
            elif kind in ("CONNS", "STATZ") and name not in self._broker.accounts:
                continue
            elif kind == "CONNS":
                account = self._broker.accounts[name]
                self._send(reply, self._broker.system.connections_event(account))
            elif (view := self._views.of_account(name, kind)) is not None:
                self._view(reply, body, view)
            else:
                self._nobody(publish, publisher)

    def _on_own(self, batch: list[Op], publisher: Session | None) -> None:
        if publisher is None:
            return
        account = publisher.account
        for subject, reply, body, _ in _requests(batch):
            view = self._views.of_account(account.name, OWN[subject])
            assert view is not None
            self._view(reply, body, view, account=account)

    def _id(self) -> Json:
        broker = self._broker
        return {"name": broker.server_name, "host": broker.info["host"], "id": broker.server_id}

    def _view(
        self, reply: bytes, body: bytes, view: View, *, account: Account | None = None
    ) -> None:
        self._answer(reply, body, lambda asked: {"data": _plain(view(asked))}, account=account)

    def _answer(
        self, reply: bytes, body: bytes, make: View, *, account: Account | None = None
    ) -> None:
        """Answer with the requested view or an error; not at all if another server is meant."""
        try:
            options = _options(body)
            if not self._is_meant(options):
                return
            document = make(_query(options))
        except _BadRequest as error:
            document = {"error": {"code": BAD_REQUEST, "description": str(error)}}
        except QueryError as error:
            document = {"data": None, "error": {"code": FAILED, "description": str(error)}}
        self._send(reply, {"server": self._broker.system.server()} | document, account)

    def _obey(self, reply: bytes, body: bytes, order: Callable[[Json], None]) -> None:
        document: Json = {"server": self._broker.system.server()}
        try:
            order(_options(body))
        except (_BadRequest, QueryError) as error:
            code = BAD_REQUEST if isinstance(error, _BadRequest) else FAILED
            document["error"] = {"code": code, "description": str(error)}
        self._send(reply, document)

    def _is_meant(self, options: Json) -> bool:
        """Tell whether a request to all servers is for this one."""
        broker = self._broker
        is_exact = bool(options.get("exact_match", False))
        for key, own in (("server_name", broker.server_name), ("host", broker.info["host"])):
            wanted = options.pop(key, "")
            if wanted and (wanted != own if is_exact else wanted not in own):
                return False
        # There is no cluster and, unless it is named, no domain.
        tags = options.pop("tags", [])
        return not options.pop("cluster", "") and set(tags) <= set(broker.config.server_tags)

    def _kick(self, options: Json) -> None:
        self._connection(options, "no such client or leafnode id").close("Kicked")

    def _lame_duck(self, options: Json) -> None:
        session = self._connection(options, "no such client id").session
        session.write(self._broker.info_line(session, ldm=True))

    def _reload(self, options: Json) -> None:
        load_again = self._load_again()
        if load_again is None:
            raise QueryError("there is no configuration file to read again")
        problem = load_again()
        if problem:
            raise QueryError(problem)

    def _connection(self, options: Json, otherwise: str) -> Any:
        session = self._broker.sessions.get(options.get("cid", 0))
        if session is None or session.transport is None:
            raise QueryError(otherwise)
        return session.transport

    def _nobody(self, publish: Op, publisher: Session | None) -> None:
        self._broker.directory.system.answer_no_responders([publish], publisher)

    def _send(self, reply: bytes, document: Json, account: Account | None = None) -> None:
        if reply:
            (account or self._broker.directory.system).send(reply, encode(document))


class _BadRequest(Exception):
    """A request that is not a JSON object."""


def _requests(batch: list[Op], prefix: str = "") -> Iterator[tuple[str, bytes, bytes, Op]]:
    """Yield subject, reply and body of each request, and its run."""
    for publish in batch:
        subject = subjects.text(publish[SUBJECT])
        if subject.startswith(prefix):
            for message in payloads(publish):
                yield subject, publish[REPLY], message[publish[HEADER_BYTES] : -2], publish


def _options(body: bytes) -> Json:
    if len(body) > BODY_BYTES_MAX:
        raise _BadRequest(f"a request has at most {BODY_BYTES_MAX} bytes")
    if not body.strip():
        return {}
    try:
        options = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _BadRequest(str(error)) from None
    if not isinstance(options, dict):
        raise _BadRequest("a request is a JSON object, or empty")
    # Go takes null for a missing field.
    options = {name: value for name, value in options.items() if value is not None}
    for name, kind in TYPES.items():
        if name in options and type(options[name]) is not kind:
            raise _BadRequest(f"`{name}` is no {kind.__name__}")
    if not all(isinstance(tag, str) for tag in options.get("tags", [])):
        raise _BadRequest("`tags` are texts")
    return options


def _query(options: Json) -> Query:
    """Return options in the form of a monitoring query."""
    found: dict[str, str] = {}
    for name, value in options.items():
        if name == "subscriptions_detail" and value:
            found["subs"] = "detail"
        elif name == "state" and isinstance(value, int):
            found["state"] = STATES[value] if 0 <= value < len(STATES) else str(value)
        elif isinstance(value, bool | int | str):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found.setdefault(NAMES.get(name, name), text)
    if query.integer(found, "limit") > query.LIMIT:
        # An answer is one message, made in one go, so it has a limit.
        found["limit"] = str(query.LIMIT)
    return found


def _plain(value: Any) -> Any:
    """Return a document with all lazy lists evaluated."""
    if isinstance(value, Iterator):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value
