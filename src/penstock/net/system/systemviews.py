"""The views for system requests: those of the monitoring, and of one account."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core.reports.system import account_stats
from penstock.net.monitor import accountz, usage, views
from penstock.net.monitor.connz import connz
from penstock.net.monitor.healthz import healthz
from penstock.net.monitor.jsz import jsz
from penstock.net.monitor.query import Query, QueryError

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched


Json = dict[str, Any]
View = Callable[[Query], Json]


class SystemViews:
    """Every view by its name in requests."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self._broker = server.broker
        self.of_server: dict[str, View] = {
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

    def statsz(self, asked: Query) -> Json:
        """Return the figures of the server."""
        return {"statsz": views.statsz(self._server)}

    def accstatz(self, asked: Query) -> Json:
        """Return the figures of all accounts."""
        return accountz.accstatz(self._broker, asked)

    def of_account(self, name: str, kind: str) -> View | None:
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
