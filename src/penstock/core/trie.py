"""
Subject → subscriptions, one node a token.

Wildcards are ordinary children named `*` and `>`: matching a subject looks, at
each level, for its own token and for those two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Node(Generic[T]):
    """The subscriptions that end here, and the tokens that go on from here."""

    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[bytes, Node[T]] = {}
        # A dict as an ordered set: a thousand subscribers leave in constant time each.
        self.values: dict[T, None] = {}


class Trie(Generic[T]):
    """A set of (pattern, value) pairs that finds the values for a literal subject."""

    def __init__(self) -> None:
        self._root: Node[T] = Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def insert(self, pattern: bytes, value: T) -> None:
        """Add `value` under `pattern`; twice is once."""
        node = self._root
        for token in pattern.split(b"."):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = Node()
            node = child
        if value not in node.values:
            node.values[value] = None
            self._size += 1

    def remove(self, pattern: bytes, value: T) -> bool:
        """Take `value` away from `pattern` and tell whether it was there."""
        path: list[tuple[Node[T], bytes]] = []
        node = self._root
        for token in pattern.split(b"."):
            child = node.children.get(token)
            if child is None:
                return False
            path.append((node, token))
            node = child
        if value not in node.values:
            return False
        del node.values[value]
        self._size -= 1
        self._prune(path)
        return True

    def _prune(self, path: list[tuple[Node[T], bytes]]) -> None:
        """Drop the nodes that lead nowhere now, so that passing inboxes leave nothing behind."""
        for parent, token in reversed(path):
            child = parent.children[token]
            if child.values or child.children:
                return
            del parent.children[token]

    def match(self, subject: bytes) -> list[T]:
        """Return every value whose pattern matches the literal `subject`."""
        tokens = subject.split(b".")
        if b"" in tokens:
            return []
        found: list[T] = []
        level = [self._root]
        for token in tokens:
            following: list[Node[T]] = []
            for node in level:
                children = node.children
                rest = children.get(b">")
                if rest is not None:
                    found.extend(rest.values)
                star = children.get(b"*")
                if star is not None:
                    following.append(star)
                # A published `*` or `>` is a literal; as children these names are wildcards.
                if token != b"*" and token != b">":
                    child = children.get(token)
                    if child is not None:
                        following.append(child)
            if not following:
                return found
            level = following
        for node in level:
            found.extend(node.values)
        return found

    def values(self) -> Iterator[T]:
        """Yield every value."""
        todo = [self._root]
        while todo:
            node = todo.pop()
            yield from node.values
            todo += node.children.values()

    def is_uniform(self, prefix: bytes, *, any_depth: bool = False) -> bool:
        """
        Tell whether every subject one token longer than `prefix` has the same matches.

        With `any_depth`, every subject that is longer by any number of tokens.
        """
        tokens = prefix.split(b".") if prefix else []
        if b"" in tokens:
            return False
        level = [self._root]
        for token in tokens:
            names = {token, b"*"} - {b">"}
            level = [node.children[name] for node in level for name in names & node.children.keys()]
        wildcards = {b">"} if any_depth else {b"*", b">"}
        return all(node.children.keys() <= wildcards for node in level)
