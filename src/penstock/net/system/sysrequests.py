"""
`$SYS.REQ.>`: what the users of the system account may ask the server, and have it do.

Every view of the monitoring is here too, asked for with a JSON object in place of a
query. Other accounts may ask for their own connections and figures, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.core.account import Account, payloads
from penstock.core.reports.system import account_stats, encode
from penstock.core.session import Session
from penstock.hot.wire import Op
from penstock.net.monitor import accountz, query, usage, views
from penstock.net.monitor.connz import connz
from penstock.net.monitor.healthz import healthz
from penstock.net.monitor.jsz import jsz
from penstock.net.monitor.query import Query, QueryError

if TYPE_CHECKING:
    from penstock.net.server import Server

Json = dict[str, Any]
View = Callable[[Query], Json]

SERVER = "$SYS.REQ.SERVER."
ACCOUNT = "$SYS.REQ.ACCOUNT."
PING = "PING"
OWN = {
    "$SYS.REQ.SERVER.PING.CONNZ": "CONNZ",
    "$SYS.REQ.ACCOUNT.PING.CONNZ": "CONNZ",
    "$SYS.REQ.ACCOUNT.PING.STATZ": "STATZ",
}
"""What any account may ask about itself."""
NAMES = {
    "subscriptions": "subs",
    "account": "acc",
    "consumer": "consumers",
    "js_enabled_only": "js-enabled-only",
    "js_server_only": "js-server-only",
}
"""Options that are called something else in a query."""
TYPES: dict[str, type] = {
    **dict.fromkeys(("server_name", "host", "cluster"), str),
    "tags": list,
    "exact_match": bool,
    "cid": int,
}
"""What the options have to be that are not left to a view."""
STATES = ("open", "closed", "any")
BODY_BYTES_MAX = 16 * 1024
BAD_REQUEST = 400
FAILED = 500


class SystemRequests:
    """Answers requests of the system account, and of each account about itself."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._broker = server.broker
        self._views: dict[str, View] = {
            "VARZ": lambda asked: views.varz(server),
            "CONNZ": lambda asked: connz(self._broker, asked),
            "SUBSZ": lambda asked: views.subsz(self._broker, asked),
            "JSZ": lambda asked: jsz(server, asked),
            "HEALTHZ": self._healthz,
            "ACCOUNTZ": lambda asked: accountz.accountz(server, asked),
            "LEAFZ": lambda asked: accountz.leafz(self._broker),
            "ROUTEZ": lambda asked: accountz.routez(self._broker),
            "GATEWAYZ": lambda asked: accountz.gatewayz(self._broker),
            "IPQUEUESZ": lambda asked: {},
            "RAFTZ": lambda asked: {},
            "EXPVARZ": lambda asked: usage.variables(),
            "PROFILEZ": lambda asked: usage.profile(asked.get("name", "")),
        }
        self._orders: dict[str, Callable[[Json], None]] = {
            "KICK": self._kick,
            "LDM": self._lame_duck,
            "RELOAD": self._reload,
        }

    def open(self) -> None:
        """Start to listen."""
        system = self._broker.directory.system
        system.listen(b"$SYS.REQ.SERVER.>", self._on_server)
        system.listen(b"$SYS.REQ.ACCOUNT.>", self._on_account)
        self._broker.directory.install(self._install)

    def _install(self, account: Account) -> None:
        if account is not self._broker.directory.system:
            for subject in OWN:
                account.listen(subject.encode(), self._on_own)

    def _on_server(self, batch: list[Op], publisher: Session | None) -> None:
        for subject, reply, body, publish in _requests(batch, SERVER):
            target, _, kind = subject.removeprefix(SERVER).partition(".")
            if target == PING and kind in ("", "STATSZ"):
                self._answer(reply, body, lambda asked: {"statsz": views.statsz(self._server)})
            elif target not in (PING, self._broker.server_id):
                self._nobody(publish, publisher)
            elif kind == "IDZ":
                self._send(reply, self._id())
            elif kind == "STATSZ":
                self._answer(reply, body, lambda asked: {"statsz": views.statsz(self._server)})
            elif kind in self._orders and target != PING:
                self._obey(reply, body, self._orders[kind])
            elif kind in self._views:
                self._view(reply, body, self._views[kind])
            else:
                self._nobody(publish, publisher)

    def _on_account(self, batch: list[Op], publisher: Session | None) -> None:
        for subject, reply, body, publish in _requests(batch, ACCOUNT):
            name, _, kind = subject.removeprefix(ACCOUNT).rpartition(".")
            if name.endswith(".CLAIMS") and self._server.claims.hears(kind):
                continue
            if (name, kind) == (PING, "STATZ"):
                self._view(reply, body, lambda asked: accountz.accstatz(self._broker, asked))
            elif kind in ("CONNS", "STATZ") and name not in self._broker.accounts:
                continue
            elif kind == "CONNS":
                account = self._broker.accounts[name]
                self._send(reply, self._broker.system.connections_event(account))
            elif (view := self._account_view(name, kind)) is not None:
                self._view(reply, body, view)
            else:
                self._nobody(publish, publisher)

    def _on_own(self, batch: list[Op], publisher: Session | None) -> None:
        if publisher is None:
            return
        account = publisher.account
        for subject, reply, body, _ in _requests(batch):
            view = self._account_view(account.name, OWN[subject])
            assert view is not None
            self._view(reply, body, view, account=account)

    def _account_view(self, name: str, kind: str) -> View | None:
        """Return a view of one account."""
        account = self._broker.accounts.get(name)
        found: dict[str, View] = {
            "CONNZ": lambda asked: connz(self._broker, {**asked, "acc": name}),
            "SUBSZ": lambda asked: views.subsz(self._broker, {"subs": "1", **asked, "acc": name}),
            "INFO": lambda asked: accountz.account_detail(self._server, name),
            "LEAFZ": lambda asked: accountz.leafz(self._broker),
            "JSZ": lambda asked: self._account_jsz(name, asked),
            "STATZ": lambda asked: {
                **accountz.accstatz(self._broker, {}),
                "account_statz": [account_stats(self._broker, account)] if account else [],
            },
        }
        return found.get(kind)

    def _account_jsz(self, name: str, asked: Query) -> Json:
        if name not in self._broker.accounts:
            raise QueryError(f'account "{name}" not found')
        details = jsz(self._server, {**asked, "acc": name}).get("account_details", iter(()))
        detail: Json | None = next(details, None)
        if detail is None:
            raise QueryError(f'jetstream not enabled for account "{name}"')
        return detail

    def _healthz(self, asked: Query) -> Json:
        status, document = healthz(self._server, asked)
        return {"status": document["status"], "status_code": status} | document

    def _id(self) -> Json:
        broker = self._broker
        return {"name": broker.server_name, "host": broker.config.host, "id": broker.server_id}

    def _view(
        self, reply: bytes, body: bytes, view: View, *, account: Account | None = None
    ) -> None:
        self._answer(reply, body, lambda asked: {"data": _plain(view(asked))}, account=account)

    def _answer(
        self, reply: bytes, body: bytes, make: View, *, account: Account | None = None
    ) -> None:
        """Answer with what was asked for, or with what is wrong; not if another is meant."""
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
        """Tell whether a request that goes to all servers is for this one."""
        broker = self._broker
        is_exact = bool(options.get("exact_match", False))
        for key, own in (("server_name", broker.server_name), ("host", broker.config.host)):
            wanted = options.pop(key, "")
            if wanted and (wanted != own if is_exact else wanted not in own):
                return False
        # There is no cluster and, unless it is named, no domain.
        tags = options.pop("tags", [])
        return not options.pop("cluster", "") and set(tags) <= set(broker.config.tags)

    def _kick(self, options: Json) -> None:
        self._connection(options, "no such client or leafnode id").close("Kicked")

    def _lame_duck(self, options: Json) -> None:
        session = self._connection(options, "no such client id").session
        session.write(self._broker.info_line(session, ldm=True))

    def _reload(self, options: Json) -> None:
        if self._server.load_again is None:
            raise QueryError("there is no configuration file to read again")
        problem = self._server.load_again()
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
    """A request that is no JSON object."""


def _requests(batch: list[Op], prefix: str = "") -> Iterator[tuple[str, bytes, bytes, Op]]:
    """Yield subject, reply and body of each request, and the run it came in."""
    for publish in batch:
        subject = publish[1].decode(errors="replace")
        if subject.startswith(prefix):
            for message in payloads(publish):
                yield subject, publish[2], message[publish[3] : -2], publish


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
    # Go takes null for a field that is not there.
    options = {name: value for name, value in options.items() if value is not None}
    for name, kind in TYPES.items():
        if name in options and type(options[name]) is not kind:
            raise _BadRequest(f"`{name}` is no {kind.__name__}")
    if not all(isinstance(tag, str) for tag in options.get("tags", [])):
        raise _BadRequest("`tags` are texts")
    return options


def _query(options: Json) -> Query:
    """Return options as the monitoring takes them."""
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
        # An answer is one message, and made in one go.
        found["limit"] = str(query.LIMIT)
    return found


def _plain(value: Any) -> Any:
    """Return a document with the lists that were still to be made."""
    if isinstance(value, Iterator):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value
