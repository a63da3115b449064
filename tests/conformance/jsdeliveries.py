r"""
Conversations with consumers, written as text: what was sent, and all that came back.

    # pull
    % jetstream { store_dir: "js" }          the server's configuration, if it is not that

    > $JS.API.CONSUMER.MSG.NEXT.S.C 2        a request: subject, payload
    + Nats-Required-Api-Level: 99            one of its headers
    < s.a @1 {Nats-Msg-Id: 1} hello          a message: subject, reply, headers, payload
    > @1 +ACK                                to the reply of the first message that had one
    >> @1 +ACK                               the same without a reply subject
    >one $JS.API.CONSUMER.MSG.NEXT.S.C 2     a request with another one
    ! SUB push 2                             a line of the protocol; \r\n parts it into several
    > s.a {x*600000}                         so many of a character, sent and received

Every line that is sent may be followed by the messages it causes, in order. A
message that takes its time is waited for; that no other comes is only known up to
the next PING. Answers and advisories are put behind deliveries. A push consumer's
heartbeat that says what the one before it said is left out: how many there are is
a matter of time.

To add some, write down what is sent, and let the real server fill in the rest:
`python -m tests.conformance.jsdeliveries [name]`.
"""

from __future__ import annotations

import re
import select
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.servers import NATS_SERVER, RawClient, ServerProcess

HERE = Path(__file__).parent / "deliveries"
CONFIG = 'jetstream { store_dir: "js" }'
QUIET_S = 0.5
"""While recording: how long nothing must come before the next line is sent."""
LONGEST_S = 1.7
"""While recording: how long a line is followed at most."""
VARYING = (
    (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME"),
    (r'"_nats\.ver":"[^"]*"', '"_nats.ver":VERSION'),
    (r'"_nats\.level":"[^"]*"', '"_nats.level":LEVEL'),
    (r'"id":"\w{22}"', '"id":ID'),
    (r'"server":"\w{56}"', '"server":SERVER'),
    (r'"client":{"start":"TIME","host":"127.0.0.1","id":\d+,', '"client":{"id":CLIENT,'),
    (r'"rtt":\d+,', ""),
    (r'"leader":"[^"]*"', '"leader":ID'),
    (r'"pinned_(client_id|id)":"\w{22}"', r'"pinned_\1":PIN'),
    (r"Nats-Pin-Id: \w{22}", "Nats-Pin-Id: PIN"),
    (r'"ack_time":\d+', '"ack_time":NS'),
    (r'"pause_remaining":\d+', '"pause_remaining":NS'),
    (r"\$JS\.FC\.(\w+\.\w+)\.\w+", r"$JS.FC.\1.TOKEN"),
    (r"(\$JS\.ACK\.\w+\.\w+\.\d+\.\d+\.\d+)\.\d{19}\.", r"\1.TIME."),
)

REPEATED = re.compile(r"\{(.)\*(\d+)\}")
LONG = re.compile(r"([^ ])\1{99,}")
"""What is written shorter: a character that comes a hundred times in a row."""


@dataclass
class Step:
    """One line that is sent, and the messages that follow it."""

    line: str
    headers: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return it as it is written down."""
        return [self.line, *(f"+ {each}" for each in self.headers), *self.messages]


@dataclass
class Conversation:
    """A file of them."""

    path: Path
    title: str
    steps: list[Step]
    config: str = CONFIG

    def lines(self) -> list[str]:
        """Return it as it is written down."""
        config = [f"% {self.config}"] if self.config != CONFIG else []
        return [self.title, *config, *(line for step in self.steps for line in step.lines())]


def load_all() -> list[Conversation]:
    """Return every conversation."""
    return [_load(path) for path in sorted(HERE.glob("*.txt"))]


def _load(path: Path) -> Conversation:
    title, *lines = path.read_text().splitlines()
    config = lines.pop(0)[2:] if lines[0].startswith("% ") else CONFIG
    steps: list[Step] = []
    for line in lines:
        if line.startswith("+ "):
            steps[-1].headers.append(line[2:])
        elif line.startswith("< "):
            steps[-1].messages.append(line)
        else:
            steps.append(Step(line))
    return Conversation(path, title, steps, config)


def play(conversation: Conversation, port: int, *, records: bool = False) -> Conversation:
    """Hold a conversation again, and return it with what came back this time."""
    with RawClient(port) as client:
        player = _Player(client.connect())
        steps = [player.step(step, records=records) for step in conversation.steps]
    return replace(conversation, steps=steps)


class _Player:
    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._replies: list[str] = []
        self._early: list[str] = []
        self._heartbeats: dict[str, str] = {}
        """The last heartbeat on each subject."""
        client.send(b"SUB _INBOX.t 1\r\n")

    def step(self, step: Step, *, records: bool) -> Step:
        self._client.send(self._encode(step))
        messages, self._early = self._early, []
        if records:
            self._client.send(b"PING\r\n")
            end = time.monotonic() + LONGEST_S
            while time.monotonic() < end and self._is_readable():
                self._read(messages)
        else:
            with suppress(TimeoutError):
                while len(messages) < len(step.messages):
                    self._read(messages)
            # What must not come would be here before the answer to this.
            self._client.send(b"PING\r\n")
            while self._read(messages):
                pass
        return Step(step.line, step.headers, sorted(messages, key=_rank))

    def _encode(self, step: Step) -> bytes:
        kind, _, text = step.line.partition(" ")
        text = REPEATED.sub(lambda found: found[1] * int(found[2]), text)
        if kind == "!":
            return text.replace(r"\r\n", "\r\n").encode() + b"\r\n"
        subject, _, payload = text.partition(" ")
        if subject.startswith("@"):
            subject = self._replies[int(subject[1:]) - 1]
        reply = {">": "_INBOX.t ", ">>": ""}.get(kind, f"{kind[1:]} ")
        body = payload.encode()
        if not step.headers:
            return f"PUB {subject} {reply}{len(body)}\r\n".encode() + body + b"\r\n"
        block = "\r\n".join(["NATS/1.0", *step.headers, "", ""]).encode()
        sizes = f"{len(block)} {len(block) + len(body)}"
        return f"HPUB {subject} {reply}{sizes}\r\n".encode() + block + body + b"\r\n"

    def _is_readable(self) -> bool:
        if b"\r\n" in self._client._received:
            return True
        return bool(select.select([self._client.sock], [], [], QUIET_S)[0])

    def _read(self, messages: list[str]) -> bool:
        """Read a line or a message; tell whether it was not a PONG."""
        line = self._client.line().decode()
        verb, *fields = line.split()
        if verb in ("MSG", "HMSG"):
            message = self._message(verb, fields)
            if not self._is_repeated(message):
                messages.append(message)
        return verb != "PONG"

    def _is_repeated(self, message: str) -> bool:
        subject = message.split()[1]
        if "{100 Idle Heartbeat" not in message or subject == "_INBOX.t":
            return False
        last, self._heartbeats[subject] = self._heartbeats.get(subject), message
        return last == message

    def _message(self, verb: str, fields: list[str]) -> str:
        size = int(fields[-1])
        header_bytes = int(fields[-2]) if verb == "HMSG" else 0
        numbers = 2 if verb == "HMSG" else 1
        data = self._client.read(size + 2)[:-2]
        parts = [fields[0]]
        if len(fields) - numbers == 3:
            self._replies.append(fields[2])
            parts.append(f"@{len(self._replies)} {fields[2]}")
        if header_bytes:
            block = data[:header_bytes].decode().removeprefix("NATS/1.0").strip()
            parts.append("{" + block.replace("\r\n", ", ") + "}")
        parts.append(data[header_bytes:].decode())
        text = " ".join(part for part in parts if part)
        for pattern, name in VARYING:
            text = re.sub(pattern, name, text)
        text = LONG.sub(lambda found: f"{{{found[1]}*{len(found[0])}}}", text)
        return "< " + text.replace(r"\u003e", ">")


def _rank(message: str) -> int:
    """
    Return 1 for what may come before or after the deliveries around it.

    Answers that promise durability leave later here than at nats-server, which
    promises less.
    """
    is_answer = message == "< _INBOX.t" or message.startswith('< _INBOX.t {"')
    if ".ADVISORY." in message:
        return 3 if ".ADVISORY.API " in message else 2
    return 1 if is_answer else 0


def record(*names: str) -> None:
    """Hold conversations, all or those named, with the real server, and write down what it says."""
    for conversation in load_all():
        if names and conversation.path.stem not in names:
            continue
        with ServerProcess(NATS_SERVER, conversation.config) as server:
            played = play(conversation, server.port, records=True)
        conversation.path.write_text("\n".join(played.lines()) + "\n")


if __name__ == "__main__":
    record(*sys.argv[1:])
