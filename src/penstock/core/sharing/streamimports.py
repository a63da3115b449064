"""
Streams of other accounts: their messages are delivered here.

A subscription to an imported subject gets a shadow: a second subscription, in the exporting
account. So an import without subscribers costs nothing, and the members of a queue group
share imported messages like all others.
"""

from __future__ import annotations

from penstock.config.sharing import Relation
from penstock.core.account import Account
from penstock.core.routing.route import Subscription


class StreamImport:
    """One imported stream and its shadows. A `route.StreamImport`, and a `route.Follower`."""

    def __init__(
        self, importer: Account, exporter: Account, relation: Relation, *, allow_trace: bool = False
    ) -> None:
        self.importer = importer
        self.relation = relation
        self.allow_trace = allow_trace
        """Whether the exporter's traces show the receivers here."""
        self._exporter = exporter
        self._shadows: dict[Subscription, Subscription] = {}

    @property
    def importer_name(self) -> str:
        """The name of the account that imports it."""
        return self.importer.name

    def open(self) -> None:
        """Add shadows for the current subscriptions, and follow changes."""
        self.importer.routes.followers += (self,)
        for subscription in self.importer.routes.trie.values():
            self.inserted(subscription)

    def close(self) -> None:
        """Remove all shadows, and stop following."""
        followers = self.importer.routes.followers
        self.importer.routes.followers = tuple(each for each in followers if each is not self)
        for subscription in tuple(self._shadows):
            self.removed(subscription)

    def inserted(self, subscription: Subscription) -> None:
        """Add a shadow for a subscription that takes some of this stream."""
        pattern = self.relation.foreign_pattern(subscription.subject)
        if pattern is None or subscription.is_internal:
            return
        shadow = Subscription(
            pattern, subscription.session, sid=subscription.sid, queue=subscription.queue
        )
        shadow.origin, shadow.stream_import = subscription, self
        self._shadows[subscription] = shadow
        self._exporter.routes.insert(shadow)

    def removed(self, subscription: Subscription) -> None:
        """Remove the shadow of a subscription."""
        shadow = self._shadows.pop(subscription, None)
        if shadow is not None:
            self._exporter.routes.remove(shadow)
