"""
Subject → subscriptions: a tree with one node per token.

Wildcards are ordinary children named `*` and `>`: at each level, matching looks for the
subject's own token and for these two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


NOTHING: dict[Any, Any] = {}
"""The shared empty dict of all nodes without children or values. Never modified."""


class Node(Generic[T]):
    """The subscriptions that end at a node, and its children by token."""

    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[bytes, Node[T]] = NOTHING
        # A dict as an ordered set: each of a thousand subscribers leaves in constant time.
        self.values: dict[T, None] = NOTHING


class TooManySteps(Exception):
    """Too many wildcards cross each other: the comparison would take too long."""


class Steps:
    """A budget for comparisons of patterns."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        """Use up some steps; raise TooManySteps if none are left."""
        self.left -= count
        if self.left < 0:
            raise TooManySteps


class Trie(Generic[T]):
    """A set of (pattern, value) pairs that finds the values for a literal subject."""

    def __init__(self) -> None:
        self._root: Node[T] = Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def insert(self, pattern: bytes, value: T) -> None:
        """Add `value` under `pattern`. Idempotent."""
        node = self._root
        for token in pattern.split(b"."):
            child = node.children.get(token)
            if child is None:
                if not node.children:
                    node.children = {}
                child = node.children[token] = Node()
            node = child
        if not node.values:
            node.values = {value: None}
            self._size += 1
        elif value not in node.values:
            node.values[value] = None
            self._size += 1

    def remove(self, pattern: bytes, value: T) -> bool:
        """Remove `value` from `pattern` and tell whether it was there."""
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
        """Drop nodes that have become empty, so that short-lived inboxes leave nothing behind."""
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

    def overlapping(self, pattern: bytes, steps: Steps) -> Iterator[T]:
        """Yield every value whose pattern has a subject in common with `pattern`."""
        level = [self._root]
        for token in pattern.split(b"."):
            steps.take(len(level))
            if token == b">":
                yield from _below(level, steps)
                return
            following: list[Node[T]] = []
            for node in level:
                children = node.children
                rest = children.get(b">")
                if rest is not None:
                    yield from rest.values
                if token == b"*":
                    steps.take(len(children))
                    following += [child for name, child in children.items() if name != b">"]
                else:
                    following += [children[name] for name in (b"*", token) if name in children]
            level = following
        for node in level:
            yield from node.values

    def containing(self, pattern: bytes, steps: Steps) -> Iterator[T]:
        """Yield every value whose pattern covers all subjects of `pattern`."""
        level = [self._root]
        for token in pattern.split(b"."):
            steps.take(len(level))
            for node in level:
                rest = node.children.get(b">")
                if rest is not None:
                    yield from rest.values
            if token == b">":
                return
            names = (b"*", token) if token != b"*" else (token,)
            level = [
                node.children[name] for node in level for name in names if name in node.children
            ]
        for node in level:
            yield from node.values

    def values(self) -> Iterator[T]:
        """Yield every value."""
        yield from self._root.values
        yield from _below([self._root], Steps(sys.maxsize))

    def is_uniform(self, prefix: bytes, *, any_depth: bool = False) -> bool:
        """
        Tell whether all subjects one token longer than `prefix` have the same matches.

        With `any_depth`, all subjects longer by any number of tokens.
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


def _below(nodes: list[Node[T]], steps: Steps) -> Iterator[T]:
    """Yield the values of all nodes below these."""
    todo = [child for node in nodes for child in node.children.values()]
    while todo:
        node = todo.pop()
        steps.take(1)
        yield from node.values
        todo += node.children.values()
