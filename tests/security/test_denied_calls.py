"""
A rule that denies a call to JetStream denies it however its subject is spelled.

Each spelling either is the denied call, and is refused, or names nothing that exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.conftest import Servers
from tests.security.asking import Asker
from tests.servers import Program

CONFIG = """
jetstream { store_dir: js, domain: hub }
accounts {
  A {
    jetstream: enabled
    users: [
      { user: owner, password: x }
      { user: guest, password: x, permissions: { publish: { deny: [
        "$JS.API.STREAM.DELETE.VICTIM", "$JS.API.STREAM.PURGE.VICTIM"
      ] } } }
      { user: reader, password: x, permissions: {
        publish: "$JS.API.STREAM.INFO.VICTIM"
      } }
    ]
  }
}
"""
CALLS = (b"$JS.API.STREAM.DELETE.", b"$JS.API.STREAM.PURGE.")
VICTIM = b"VICTIM"


def hub(call: bytes) -> bytes:
    """Return a call in the words of the server's domain."""
    return call.replace(b"$JS.API", b"$JS.hub.API")


SPELLINGS = {
    "as it is": lambda call: call + VICTIM,
    "of the domain": lambda call: hub(call) + VICTIM,
    "of another domain": lambda call: call.replace(b"$JS", b"$JS.spoke") + VICTIM,
    "the domain twice": lambda call: hub(hub(call)).replace(b".API", b".hub.API", 1) + VICTIM,
    "the API twice": lambda call: call.replace(b"API", b"API.API") + VICTIM,
    "small letters": lambda call: call.lower() + VICTIM,
    "a small prefix": lambda call: call.replace(b"$JS", b"$js") + VICTIM,
    "a small name": lambda call: call + VICTIM.lower(),
    "an empty token inside": lambda call: call + b"." + VICTIM,
    "an empty token before": lambda call: b"." + call + VICTIM,
    "an empty token behind": lambda call: call + VICTIM + b".",
    "an empty token in the prefix": lambda call: call.replace(b"$JS", b"$JS.") + VICTIM,
    "one token more": lambda call: call + VICTIM + b".VICTIM",
    "a wildcard": lambda call: call + b"*",
    "a full wildcard": lambda call: call + b">",
    "a wildcard for the verb": lambda call: b"$JS.API.STREAM.*." + VICTIM,
    "a wildcard for the prefix": lambda call: call.replace(b"API", b"*") + VICTIM,
    "no UTF-8 before": lambda call: call + b"\xff" + VICTIM,
    "no UTF-8 behind": lambda call: call + VICTIM + b"\xff",
    "half a character": lambda call: call + VICTIM + b"\xc3",
    "an overlong letter": lambda call: call + b"\xc1\x96ICTIM",
    "a surrogate": lambda call: call + VICTIM + b"\xed\xa0\x80",
    "a replacement character": lambda call: call + VICTIM + "\ufffd".encode(),
    "no width": lambda call: call + VICTIM + "\u200b".encode(),
    "a byte order mark": lambda call: call + "\ufeff".encode() + VICTIM,
    "full width": lambda call: call + "\uff36ICTIM".encode(),
    "an accent": lambda call: call + VICTIM + "\u0301".encode(),
    "a dotted capital": lambda call: call + "V\u0130CTIM".encode(),
    "an escape": lambda call: call + b"%56ICTIM",
    "a plus before": lambda call: call + b"+" + VICTIM,
    "a plus behind": lambda call: call + VICTIM + b"+",
    "NUL before": lambda call: call + b"\0" + VICTIM,
    "NUL behind": lambda call: call + VICTIM + b"\0",
    "a control character": lambda call: call + VICTIM + b"\x7f",
    "white space that ends no word": lambda call: call + VICTIM + b"\x0b",
    "a carriage return": lambda call: call + VICTIM + b"\r",
    "a path": lambda call: call + b"./" + VICTIM,
    "a slash": lambda call: call + VICTIM + b"/",
    "quotes": lambda call: call + b'"VICTIM"',
}


class Scene:
    """A stream with one message and its owner, and a guest who may not touch it."""

    def __init__(self, owner: Asker, guest: Asker) -> None:
        self.owner = owner
        self.guest = guest
        self.owner.ask("$JS.API.STREAM.DELETE.VICTIM")
        config = {"name": "VICTIM", "subjects": ["victim.>"]}
        self.owner.ask("$JS.API.STREAM.CREATE.VICTIM", config)
        self.owner.ask("victim.one", b"1")

    @property
    def is_whole(self) -> bool:
        """Whether the stream has its message."""
        answer = self.owner.ask("$JS.API.STREAM.INFO.VICTIM")
        return "state" in answer and answer["state"]["messages"] > 0


@pytest.fixture
def scene(servers: Servers, program: Program) -> Iterator[Scene]:
    with ExitStack() as stack:
        server = servers(program, CONFIG)
        yield Scene(*(stack.enter_context(Asker.of(server, user)) for user in ("owner", "guest")))


def test_no_spelling_of_a_call_passes_a_rule_that_denies_it(scene: Scene) -> None:
    for spelling, spelled in SPELLINGS.items():
        for call in CALLS:
            for reply in (b"", scene.guest.inbox.encode()):
                scene.guest.send(b"PUB %b %b 0\r\n\r\n" % (spelled(call), reply))
            scene.guest.settle()

            assert scene.is_whole, (spelling, call)


def test_the_owner_may_use_the_words_of_the_domain(scene: Scene) -> None:
    assert scene.owner.ask("$JS.hub.API.STREAM.PURGE.VICTIM")["success"] is True


@pytest.mark.parametrize("prefix", ["$JS.API", "$JS.hub.API"])
def test_a_rule_that_allows_a_call_allows_it_in_the_words_of_the_domain(
    servers: Servers, program: Program, prefix: str
) -> None:
    with Asker.of(servers(program, CONFIG), "reader") as reader:
        assert "type" in reader.ask(f"{prefix}.STREAM.INFO.VICTIM")
        reader.publish(f"{prefix}.STREAM.NAMES", reply=reader.inbox)
        denied = b"-ERR 'Permissions Violation for Publish to \"$JS.API.STREAM.NAMES\"'"
        assert reader.settle() == [denied]
