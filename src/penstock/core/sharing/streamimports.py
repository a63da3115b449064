"""
Streams of other accounts: what is published there is heard here.

Whoever subscribes here to something that is imported gets a second subscription, a
shadow, in the account it comes from. So an import without subscribers costs nothing,
and the members of a queue group share what they import as they share everything.
"""

from __future__ import annotations

from penstock.config.sharing import Relation
from penstock.core.account import Account
from penstock.core.routing.route import Subscription


class StreamImport:
    """One imported stream, and the shadows it casts. A `route.Follower`."""

    def __init__(self, importer: Account, exporter: Account, relation: Relation) -> None:
        self._importer = importer
        self._exporter = exporter
        self._relation = relation
        self._shadows: dict[Subscription, Subscription] = {}

    def open(self) -> None:
        """Begin with the subscriptions that are there."""
        self._importer.routes.followers += (self,)
        for subscription in self._importer.routes.trie.values():
            self.inserted(subscription)

    def close(self) -> None:
        """Take everything away again."""
        followers = self._importer.routes.followers
        self._importer.routes.followers = tuple(each for each in followers if each is not self)
        for subscription in tuple(self._shadows):
            self.removed(subscription)

    def inserted(self, subscription: Subscription) -> None:
        """Listen over there for a subscription that takes some of this stream."""
        pattern = self._relation.foreign_pattern(subscription.subject)
        if pattern is None or subscription.is_internal:
            return
        shadow = Subscription(
            pattern, subscription.session, sid=subscription.sid, queue=subscription.queue
        )
        shadow.origin, shadow.relation = subscription, self._relation
        self._shadows[subscription] = shadow
        self._exporter.routes.insert(shadow)

    def removed(self, subscription: Subscription) -> None:
        """Stop to listen over there."""
        shadow = self._shadows.pop(subscription, None)
        if shadow is not None:
            self._exporter.routes.remove(shadow)
