r"""
Conversations with a server, written as text.

    # auto unsub max 2
    server: plain                     the configuration in configs/; `plain` if left out
    connect: {"verbose":true}         added to what clients CONNECT with; `none`: they do not
    connect b: {"echo":false}         the same for client b alone
    only: nats-server                 the other program differs here, on purpose
    until: closed                     wait for the server to hang up, and send no PING
    > SUB foo 1                       sent, with a CRLF
    >> PUB foo 1\r\nab                sent without; \r \n \t \\ \xNN and {x*4096} are understood
    < MSG foo 1 1                     received
    <~ MSG foo [12] 1                 received, as a regular expression
    b> PING                           another client
    b< (closed)                       the server hung up

After each block of lines that one client sends, every client sends a PING, the
sender first, and reads up to its PONG. So all that a block causes is known to have arrived, and
also that nothing else did. An INFO is shown by its flags alone.

To add one, write what is sent, and let the real server fill in the rest:
`python -m tests.conformance.transcripts`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import NATS_SERVER, Program, RawClient, ServerProcess

HERE = Path(__file__).parent
CONNECT = {
    "verbose": False,
    "pedantic": False,
    "headers": True,
    "no_responders": True,
    "protocol": 1,
}
PING = re.compile(rb"(?im)^ping")
INFO_FLAGS = ("auth_required", "connect_info", "ldm")
CLOSED = "(closed)"
LINE = re.compile(r"(?P<client>\w*)(?P<kind>>>?|<~?) ?(?P<text>.*)")
SETTING = re.compile(r"(?P<name>server|connect|until|only) ?(?P<client>\w*): *(?P<value>.*)")
ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|.)|\{(.)\*(\d+)\}")
ESCAPED = {"r": "\r", "n": "\n", "t": "\t", "\\": "\\"}


@dataclass
class Transcript:
    """One conversation, as it is written in the file."""

    title: str
    settings: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def is_for(self, program: Program) -> bool:
        """Tell whether this is how `program` is to answer."""
        return self.settings.get("only", program.name) == program.name

    @property
    def config(self) -> str:
        """The configuration of the server it is held with."""
        return (HERE / "configs" / f"{self.settings.get('server', 'plain')}.conf").read_text()


def load(path: Path) -> list[Transcript]:
    """Return the transcripts of a file."""
    transcripts: list[Transcript] = []
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            transcripts.append(Transcript(line[2:]))
        elif setting := SETTING.fullmatch(line):
            name = f"{setting['name']} {setting['client']}".strip()
            transcripts[-1].settings[name] = setting["value"]
        elif LINE.fullmatch(line):
            transcripts[-1].lines.append(line)
        else:
            assert not line, f"{path.name}: what is this? {line}"
    return transcripts


def load_all() -> list[Transcript]:
    """Return every transcript there is."""
    paths = sorted((HERE / "transcripts").glob("*.txt"))
    return [transcript for path in paths for transcript in load(path)]


def play(transcript: Transcript, port: int) -> list[str]:
    """Send what the transcript sends, and return its lines with what really came back."""
    played: list[str] = []
    clients: dict[str, _Client] = {}
    try:
        for name in _client_names(transcript):
            clients[name] = _Client(port, _connect_options(transcript, name))
        for name, block in _blocks(transcript):
            played += block
            clients[name].say([LINE.fullmatch(line) for line in block])
            # The sender first: once it has its PONG, what it caused is on its way to the others.
            for other in sorted(clients, key=lambda each: (each != name, each)):
                answers = clients[other].answers(waits="until" in transcript.settings)
                played += [f"{other}< {show(answer)}" for answer in answers]
    finally:
        for client in clients.values():
            client.raw.close()
    return played


def agree(expected: list[str], actual: list[str]) -> list[str]:
    """Return the actual lines, as they are expected where a regular expression says so."""
    agreed = list(actual)
    for index, (pattern, line) in enumerate(zip(expected, actual, strict=False)):
        wanted, got = LINE.fullmatch(pattern), LINE.fullmatch(line)
        assert wanted is not None
        assert got is not None
        if wanted["kind"] == "<~" and wanted["client"] == got["client"]:
            if re.fullmatch(wanted["text"], got["text"]):
                agreed[index] = pattern
    return agreed


def show(line: bytes) -> str:
    """Return a received line as text: escaped, long repetitions shortened."""
    if line.startswith(b"INFO "):
        info = json.loads(line[5:])
        return " ".join(["INFO", *(flag for flag in INFO_FLAGS if info.get(flag))])
    text = line.decode(errors="backslashreplace")
    text = re.sub(r"[\x00-\x1f]", lambda match: f"\\x{ord(match[0]):02x}", text)
    return re.sub(r"(.)\1{39,}", lambda match: f"{{{match[1]}*{len(match[0])}}}", text)


def record(path: Path) -> None:
    """Write into a file of transcripts what the real server answers."""
    chunks = []
    for transcript in load(path):
        lines = transcript.lines
        if transcript.is_for(NATS_SERVER):
            with ServerProcess(NATS_SERVER, transcript.config) as server:
                lines = agree(lines, play(transcript, server.port))
        settings = [f"{name}: {value}" for name, value in transcript.settings.items()]
        chunks.append("\n".join([f"# {transcript.title}", *settings, *lines]))
    path.write_text("\n\n".join(chunks) + "\n")


class _Client:
    """A raw client that counts how many PONGs it is owed."""

    def __init__(self, port: int, options: dict[str, Any] | None) -> None:
        self.raw = RawClient(port)
        self._is_closed = False
        self._pongs_due = 0
        if options is not None:
            self.raw.send(b"CONNECT %b\r\n" % json.dumps(options).encode())
            self.raw.settle()
            if options["protocol"] == 1:
                assert b'"connect_info":true' in self.raw.line()

    def say(self, lines: list[re.Match[str] | None]) -> None:
        data = b""
        for line in lines:
            assert line is not None
            data += _bytes(line["text"]) + (b"\r\n" if line["kind"] == ">" else b"")
        self._pongs_due += len(PING.findall(data))
        self._send(data)

    def answers(self, *, waits: bool) -> Iterator[bytes]:
        """Yield the lines the server sent; those up to the PONG, or to the end if it `waits`."""
        if self._is_closed:
            return
        if not waits:
            self._pongs_due += 1
            self._send(b"PING\r\n")
        try:
            while waits or self._pongs_due:
                line = self.raw.line()
                self._pongs_due -= line == b"PONG"
                if self._pongs_due or line != b"PONG":
                    yield line
        except (EOFError, ConnectionResetError):
            self._is_closed = True
            yield CLOSED.encode()

    def _send(self, data: bytes) -> None:
        try:
            self.raw.send(data)
        except (BrokenPipeError, ConnectionResetError):
            """Closed already, as reading on will show."""


def _client_names(transcript: Transcript) -> list[str]:
    matches = [LINE.fullmatch(line) for line in transcript.lines]
    return sorted({match["client"] for match in matches if match is not None})


def _connect_options(transcript: Transcript, client: str) -> dict[str, Any] | None:
    settings = transcript.settings
    text = settings.get(f"connect {client}".strip(), settings.get("connect", "{}"))
    return None if text == "none" else CONNECT | json.loads(text)


def _blocks(transcript: Transcript) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of a client and the lines it sends before anybody else has a say."""
    name, block = "", list[str]()
    for line in transcript.lines:
        match = LINE.fullmatch(line)
        assert match is not None
        is_sent = match["kind"].startswith(">")
        if block and (not is_sent or match["client"] != name):
            yield name, block
            block = []
        if is_sent:
            name = match["client"]
            block.append(line)
    if block:
        yield name, block


def _bytes(text: str) -> bytes:
    """Return the bytes that a line of a transcript stands for."""
    pieces, position = [], 0
    for escape in ESCAPE.finditer(text):
        pieces.append(text[position : escape.start()].encode())
        pieces.append(_unescape(escape))
        position = escape.end()
    return b"".join(pieces) + text[position:].encode()


def _unescape(escape: re.Match[str]) -> bytes:
    code, repeated, times = escape.groups()
    if code is None:
        return repeated.encode() * int(times)
    return bytes.fromhex(code[1:]) if code[0] == "x" else ESCAPED[code].encode()


if __name__ == "__main__":
    for each in sorted((HERE / "transcripts").glob("*.txt")):
        record(each)
