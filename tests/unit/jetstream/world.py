"""A JetStream engine without a server around it: a client, a clock, and a real directory."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

from tests.unit.core.peers import Later

from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import ServerConfig
from penstock.core.broker import Broker
from penstock.hot import wire
from penstock.jetstream.copies.remote import Remote
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.server import JetStreamAccounts
from penstock.jetstream.shared import Shared
from penstock.jetstream.store.file.disk import RealDisk
from penstock.jetstream.store.values import Message, complete
from penstock.protocol import headers

SECOND_NS = 1_000_000_000
START_NS = 1_800_000_000 * SECOND_NS
BIG = 1 << 30


class FailingFile:
    """A file of a disk that can be told to fail."""

    def __init__(self, disk: FailingDisk, file: Any) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._disk.check()
        self._file.sync()


class FailingDisk(RealDisk):
    """The real file system, until `is_broken`."""

    is_broken = False

    def check(self) -> None:
        if self.is_broken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, path: str) -> Any:
        self.check()
        return FailingFile(self, super().create(path))

    def rename(self, path: str, new_path: str) -> None:
        self.check()
        super().rename(path, new_path)


class World:
    """One client of one engine. Nothing happens unless it is told to."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.now_ns = START_NS
        self.disk = settings.pop("disk", None) or FailingDisk()
        self.config = JetStreamConfig(store_dir=str(directory), **settings)
        self.remotes: dict[str, Remote] = {}
        """Other servers, by the API prefix that stands for each."""
        self._start()

    def _start(self) -> None:
        chance = random.Random(1)
        self.broker = Broker(
            ServerConfig(),
            server_id="ID",
            clock_ns=lambda: self.now_ns,
            random=chance.random,
            random_bytes=bytes,
            call_later=Later,
        )
        self.shared = Shared(
            self.config,
            self.disk,
            server_name="ID",
            clock_ns=lambda: self.now_ns,
            random=chance.random,
        )
        self.jetstream = JetStreamAccounts(self.shared)
        account = self.broker.default_account
        self.engine = self.jetstream.add(account, self.files(), remotes=self.remotes)
        self.jetstream.open(account.name)
        self.session = self.broker.open("127.0.0.1", 1)
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        self.send(b"SUB _INBOX.> 1\r\n")
        self.received()
        self._numbers = itertools.count()

    def files(self) -> StreamFiles:
        """Return where the streams are kept."""
        return StreamFiles(self.disk, self.config.store_dir, "$G")

    def restart(self) -> None:
        """Stop in order, and start on the same directory."""
        self.settle()
        self.engine.close()
        self._start()

    def send(self, data: bytes) -> None:
        """Have the client send bytes."""
        self.session.receive(data)

    def publish(
        self, subject: str, payload: bytes | str = b"", *, reply: str = "", **pairs: str
    ) -> None:
        """Publish; header names are written with `_` in place of `-`."""
        body = payload if isinstance(payload, bytes) else payload.encode()
        named = [(key.replace("_", "-"), value) for key, value in pairs.items()]
        block = headers.encode(named) if pairs else b""
        head = f"{'H' if block else ''}PUB {subject} {reply} ".encode()
        sizes = b"%d %d" % (len(block), len(block + body)) if block else b"%d" % len(body)
        self.send(b"%b%b\r\n%b%b\r\n" % (head, sizes, block, body))

    def ask(self, subject: str, payload: bytes | str = b"", /, **pairs: str) -> Any:
        """Send a request and return the answer: a document, or headers and payload."""
        self.publish(subject, payload, reply=f"_INBOX.{next(self._numbers)}", **pairs)
        self.settle()
        answers = self.received()
        assert len(answers) == 1, answers
        return answers[0]

    def call(self, name: str, /, **fields: Any) -> Any:
        """Make an API call."""
        return self.ask(f"$JS.API.{name}", json.dumps(fields) if fields else "")

    def create(self, name: str, /, **fields: Any) -> Any:
        """Create a stream, which must work; memory is the default here."""
        answer = self.call(f"STREAM.CREATE.{name}", name=name, **({"storage": "memory"} | fields))
        assert "error" not in answer, answer
        return answer

    def state(self, name: str) -> Any:
        """Return the state of a stream."""
        return self.call(f"STREAM.INFO.{name}")["state"]

    def messages(self, name: str) -> list[tuple[int, str, bytes]]:
        """Return what a stream holds: sequence, subject, payload."""
        found = self.content(name)
        return [(sequence, subject.decode(), payload) for sequence, _, subject, _, payload in found]

    def content(self, name: str, *filters: bytes) -> list[Message]:
        """Return what a stream holds on some subjects, as its store has it."""
        store = self.engine.streams[name].store
        found: list[Message] = []
        following = 1
        while following <= store.last_sequence:
            # A read that filters looks at so many messages, and says where it stopped.
            some, following = store.read(following, count_max=BIG, bytes_max=BIG, filters=filters)
            found += some
        return found

    def settle(self) -> None:
        """Commit until nothing is left to commit, and nothing of what was deleted."""
        for _ in range(100):
            commit = self.shared.begin_commit()
            if commit is None:
                break
            commit.run()
            commit.finish()
        else:
            raise AssertionError("there is always more to commit")
        while self.shared.rubbish:
            complete(self.shared.rubbish.sweep())

    def advance(self, seconds: float) -> None:
        """Let time pass, and do what is due."""
        self.now_ns += int(seconds * SECOND_NS)
        self.shared.timers.run(self.shared.clock_ns())
        self.settle()

    def received(self) -> list[Any]:
        """Return what the client was sent since the last time, documents decoded."""
        return [_decoded(header_bytes, data) for header_bytes, data in self.deliveries()]

    def deliveries(self) -> list[tuple[int, bytes]]:
        """Return the same as it came: how much of it is headers, and headers and payload."""
        return [each[4:6] for each in self.operations()]

    def operations(self) -> list[wire.Op]:
        """Return the same with the subjects it came to."""
        entries = [
            entry if isinstance(entry, bytes) else entry[0].join(entry[1])
            for entry in self.session.outbox
        ]
        self.session.outbox.clear()
        operations, _, _ = wire.parse_messages(b"".join(entries), BIG, 4096)
        return [each for each in operations if each[0] == wire.MSG]


def _decoded(header_bytes: int, data: bytes) -> Any:
    if header_bytes:
        return data[:header_bytes], data[header_bytes:]
    return json.loads(data) if data.startswith(b"{") else data


def error(answer: Any) -> tuple[int, str]:
    """Return the code and the text of an error."""
    return answer["error"]["err_code"], answer["error"]["description"]
