"""
Let a service authenticate users: `auth_callout`.

The service listens in an account. The server sends it a signed token with a key made for
this one question. The service answers with a token about that key: the user, its
permissions and its account. The connection waits meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.account import Account
from penstock.core.identity.auth import Identity, Question
from penstock.core.runs import payloads
from penstock.errors import PenstockError
from penstock.hot.wire import Op
from penstock.keys import nkeys, tokens, xkeys
from penstock.protocol import times
from penstock.protocol.version import NATS_VERSION

if TYPE_CHECKING:
    from penstock.core.broker import Broker
    from penstock.core.host import ScheduledCall
    from penstock.core.session import Session

log = logging.getLogger("penstock")

SUBJECT = b"$SYS.REQ.USER.AUTH"
AUDIENCE = "nats-authorization-request"
INBOX = "$SYS._INBOX."
XKEY_HEADER = b"NATS/1.0\r\nNats-Server-Xkey: %b\r\n\r\n"
KEY_BYTES, NONCE_BYTES = 32, 24
TOKEN_START = b"eyJ"
CONNECT_FIELDS = (*("jwt", "nkey", "sig", "auth_token", "user", "pass", "name", "lang", "version"),)
Done = Callable[[Identity | None], None]


class Asked(NamedTuple):
    """An open question."""

    question: Question
    user_key: str
    """The key that the answer must be about."""
    done: Done
    timer: ScheduledCall
    """Ends the wait for the answer."""


class Callouts:
    """Asks the service, and evaluates its answers."""

    def __init__(
        self, broker: Broker, key: nkeys.KeyPair, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._broker = broker
        self._key = key
        self._random_bytes = random_bytes
        self._curve_key: xkeys.CurveKey | None = None
        self._inbox = f"{INBOX}{broker.directory.new_id()}."
        self._asked: dict[bytes, Asked] = {}
        self._listening: set[Account] = set()

    def ask(self, session: Session, question: Question, done: Done) -> None:
        """Ask about a session. `done` gets the user, or None if the answer is negative or late."""
        account = self._broker.accounts[question.callout.account]
        if account not in self._listening:
            self._listening.add(account)
            account.listen(f"{self._inbox}>".encode(), self._on_answers)
        user = nkeys.KeyPair(nkeys.USER_PREFIX, self._random_bytes(KEY_BYTES))
        reply = f"{self._inbox}{self._broker.directory.new_id()}".encode()
        timeout_s = self._broker.auth_timeout_s(session.kind)
        timer = self._broker.call_later(timeout_s, lambda: self._give_up(reply))
        self._asked[reply] = Asked(question, user.public, done, timer)
        request, header = self._request(session, question, user.public, timeout_s)
        account.send(SUBJECT, request, reply=reply, header=header)

    def _give_up(self, reply: bytes) -> None:
        asked = self._asked.pop(reply, None)
        if asked is not None:
            log.warning("Auth callout for account %s: no answer", asked.question.callout.account)
            asked.done(None)

    def _request(
        self, session: Session, question: Question, user_key: str, timeout_s: float
    ) -> tuple[bytes, bytes]:
        now_s = self._broker.clock_ns() // times.SECOND_NS
        xkey = question.callout.xkey
        claims = {
            "aud": AUDIENCE,
            "exp": int(now_s + timeout_s),
            "jti": self._broker.directory.new_id(),
            "iat": now_s,
            "sub": question.callout.issuer,
            "nats": {
                "server_id": self._server(encrypts=bool(xkey)),
                "user_nkey": user_key,
                "client_info": _client(session, question.options),
                "connect_opts": _connect_options(question.options),
                **_tls(session),
                "type": "authorization_request",
                "version": 2,
            },
        }
        token = tokens.encode(claims, self._key).encode()
        if not xkey:
            return token, b""
        curve_key = self._curve()
        sealed = curve_key.seal(token, xkey, self._random_bytes(NONCE_BYTES))
        return sealed, XKEY_HEADER % curve_key.public.encode()

    def _curve(self) -> xkeys.CurveKey:
        if self._curve_key is None:
            self._curve_key = xkeys.CurveKey(self._random_bytes(KEY_BYTES))
        return self._curve_key

    def _server(self, *, encrypts: bool) -> dict[str, Any]:
        broker = self._broker
        server = {
            "name": broker.server_name,
            "host": broker.config.host,
            "id": broker.server_id,
            "version": NATS_VERSION,
            "tags": list(broker.config.server_tags),
            "xkey": self._curve().public if encrypts else "",
        }
        return {name: value for name, value in server.items() if value}

    def _on_answers(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            _, subject, _, header_bytes, _, _ = publish
            for message in payloads(publish):
                asked = self._asked.pop(subject, None)
                if asked is not None:
                    asked.timer.cancel()
                    asked.done(self._identity(asked, message[header_bytes:-2]))

    def _identity(self, asked: Asked, answer: bytes) -> Identity | None:
        """Return the user in an answer; None if the answer refuses the user or is invalid."""
        question, xkey = asked.question, asked.question.callout.xkey
        is_sealed = bool(xkey) and not answer.startswith(TOKEN_START)
        try:
            token = self._curve().open(answer, xkey) if is_sealed else answer
            response = tokens.decode(token.decode(), "authorization_response")
            if response.subject != asked.user_key:
                raise tokens.InvalidToken("it is about another user")
            if response.audience != self._broker.server_id:
                raise tokens.InvalidToken("it is for another server")
            if response.nats.get("error"):
                raise tokens.InvalidToken(str(response.nats["error"]))
            user = tokens.decode(response.nats.get("jwt", ""), "user")
            if user.subject != asked.user_key:
                raise tokens.InvalidToken("its user is another")
            return question.accept(response, user, is_sealed=is_sealed)
        except (ValueError, PenstockError) as error:
            log.warning("Auth callout for account %s: %s", question.callout.account, error)
        except Exception as error:
            # Whatever the answer contains, the waiting client must get a verdict.
            log.error("Auth callout for account %s: %.200r", question.callout.account, error)
        return None


def _client(session: Session, options: Mapping[str, Any]) -> dict[str, Any]:
    client = {
        "host": session.ip,
        "id": session.client_id,
        "user": options.get("nkey") or options.get("user", ""),
        "name": options.get("name", ""),
        "kind": "Client",
        "type": session.kind,
        "nonce": session.nonce if options.get("sig") else "",
    }
    return {name: value for name, value in client.items() if value}


def _connect_options(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: options[name] for name in CONNECT_FIELDS if options.get(name)}
    return given | {"protocol": options.get("protocol", 0)}


def _tls(session: Session) -> dict[str, Any]:
    state = session.tls
    if state is None:
        return {}
    tls: dict[str, Any] = {"version": state.version, "cipher": state.cipher_suite}
    if state.certificate is not None:
        tls["verified_chains"] = [[state.certificate.pem]]
    return {"client_tls": tls}
