"""
The configuration language of nats-server: text in, a tree of values out.

It is a relaxed JSON. A key and its value are joined by `:`, `=` or a space; commas
and quotes are optional; `#` and `//` start comments; numbers take the suffixes of
sizes (`1K` is 1000, `1KB` and `1KiB` are 1024). `$NAME` stands for an earlier key of
the same or an enclosing block, or else for an environment variable, and `include`
puts the keys of another file in its place. Every value remembers where it was
written and how, because only its reader knows whether `2m` are minutes or millions.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from penstock.config.file.nodes import Block, Node, Value
from penstock.errors import ConfigError
from penstock.protocol.units import size_of

BLANKS = re.compile(r"[ \t]*")
WHITE_SPACE = re.compile(r"\s*")
GAP = re.compile(r"(?:\s+|#[^\r\n]*|//[^\r\n]*)*")
KEY = re.compile(r"[^\s=:{}\[\],;]+")
BARE = re.compile(r"(?:\\.|[^\\\s,;\]}])*", re.DOTALL)
BARE_PATH = re.compile(r"[^\s;}]+")
QUOTED = {"'": re.compile(r"'([^']*)'"), '"': re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)}
BLOCK_STRING = re.compile(r"\((.*?\n)\)(?=\r?\n|\Z)", re.DOTALL)
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.|\Z)", re.DOTALL)
FRACTION = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")

ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
BCRYPT_PREFIXES = ("$2a$", "$2b$", "$2y$")
INTEGER_BITS = 64
NESTING_MAX = 100


def parse(
    text: str,
    *,
    source: str = "configuration",
    environ: Mapping[str, str] | None = None,
    read_text: Callable[[str], str] | None = None,
) -> Block:
    """Return the keys of `text`. `read_text` returns the text of an included path."""
    parser = _Parser(text, source, _Context(environ or {}, read_text))
    return parser.document({})


def parse_file(path: str, environ: Mapping[str, str]) -> Block:
    """Return the keys of the file at `path` and of the files it includes."""
    context = _Context(environ, _read_text, including=(str(Path(path).resolve()),))
    try:
        text = _read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read configuration file `{path}`: {_reason(error)}") from None
    return _Parser(text, path, context).document({})


def parse_value(text: str, *, source: str, environ: Mapping[str, str]) -> Node:
    """Parse `text` as a single value, as if it came after `key =`."""
    return _Parser(text, source, _Context(environ, None)).lone_value()


def plain(block: Block) -> dict[str, Any]:
    """Return the tree as plain dicts, lists and scalars."""
    return {key: _plain(node.value) for key, node in block.items()}


def digest(block: Block) -> str:
    """Return the digest nats-server prints for the same configuration."""
    import hashlib
    import json

    text = json.dumps(plain(block), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # Go's encoder escapes characters with a meaning in HTML, and ends with a newline.
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return "sha256:" + hashlib.sha256(f"{text}\n".encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True)
class _Context:
    """State that a parser shares with the parsers of included files and variables."""

    environ: Mapping[str, str]
    read_text: Callable[[str], str] | None
    scopes: tuple[Block, ...] = ()
    including: tuple[str, ...] = ()
    resolving: tuple[str, ...] = ()


@dataclass
class _Parser:
    """A position in one text."""

    text: str
    source: str
    context: _Context
    index: int = 0
    depth: int = 0
    scopes: list[Block] = field(init=False)
    line_starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.scopes = list(self.context.scopes)
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", self.text))]

    def document(self, block: Block) -> Block:
        """Parse the whole text into `block`. It may be one JSON object."""
        self._entries(block, nested=False)
        return block

    def lone_value(self) -> Node:
        """Parse the text as a single value."""
        node = self._value(self._where())
        self._skip(GAP)
        if self.index < len(self.text):
            self._fail(f"expected one value, but `{self._here()}` follows it")
        return node

    def _entries(self, block: Block, *, nested: bool) -> None:
        """Parse keys and values up to the closing brace, or the end of the text."""
        self.scopes.append(block)
        while (char := self._next_char()) and not (nested and char == "}"):
            if char == "{" and not nested:
                self.index += 1
                self._entries(block, nested=True)
            else:
                self._entry(block, nested=nested)
                self._end_of_value(closing="}" if nested else "")
        if nested and not char:
            self._fail("unexpected end of file, `}` is missing")
        self.index += len(char)
        self.scopes.pop()

    def _entry(self, block: Block, *, nested: bool) -> None:
        """Parse one key and its value, or an include."""
        where = self._where()
        quoted = self._here() in QUOTED
        key = (
            self._quoted()
            if quoted
            else self._match(KEY, f"expected a key, but found {self._shown()}")
        )
        blanks = self._skip(WHITE_SPACE)
        if not quoted and key.lower() == "include" and blanks and self._here() not in (":", "="):
            self._include(block)
            return
        if self._here() in (":", "="):
            self.index += 1
            self._skip(WHITE_SPACE if nested else BLANKS)
        if self._here() in ("", "\r", "\n", ",", ";", "]", "}"):
            self._fail(f"expected a value for `{key}`, but found {self._shown()}")
        block[key] = self._value(where)

    def _end_of_value(self, *, closing: str) -> None:
        """Skip the end of a value: a newline, a comma, a semicolon, or `closing` ahead."""
        start = self.index
        self._skip(GAP)
        char = self._here()
        if char in (",", ";"):
            self.index += 1
        elif char not in ("", closing) and "\n" not in self.text[start : self.index]:
            self._fail(f"expected a newline or a comma after the value, but found {self._shown()}")

    def _value(self, where: str) -> Node:
        """Parse one value. `where` is the place that errors about it name."""
        char = self._here()
        if char in ("{", "["):
            return self._container(where)
        if char in QUOTED:
            text = self._quoted()
            return Node(text, where, text)
        if char == "(":
            text = self._match(BLOCK_STRING, "`(` has no closing `)` on its own line")
            return Node(text[1:-1], where, text[1:-1])
        return self._bare(where)

    def _container(self, where: str) -> Node:
        """Parse a block or an array."""
        if self.depth == NESTING_MAX:
            self._fail(f"blocks are nested more than {NESTING_MAX} deep")
        self.depth += 1
        value: Value = self._array() if self._here() == "[" else self._block()
        self.depth -= 1
        return Node(value, where)

    def _block(self) -> Block:
        """Parse keys and values in braces."""
        self.index += 1
        block: Block = {}
        self._entries(block, nested=True)
        return block

    def _array(self) -> list[Node]:
        """Parse values separated by commas or newlines, up to the closing bracket."""
        self.index += 1
        nodes: list[Node] = []
        while (char := self._next_char()) != "]":
            if not char:
                self._fail("unexpected end of file, `]` is missing")
            if char in (",", ";", "}"):
                self._fail(f"expected a value, but found `{char}`")
            nodes.append(self._value(self._where()))
            self._end_of_value(closing="]")
        self.index += 1
        return nodes

    def _bare(self, where: str) -> Node:
        """Parse a value without quotes: a boolean, a number, a variable or a string."""
        start = self.index
        text = self._match(BARE, f"expected a value, but found {self._shown()}")
        if "\\" in text:
            string = self._unescape(text, start)
            return Node(string, where, string)
        if text.lower() in BOOLEANS:
            return Node(BOOLEANS[text.lower()], where, text)
        if text.startswith("$") and not text.startswith(BCRYPT_PREFIXES):
            return self._variable(text[1:], where, start)
        return Node(self._number(text, start), where, text)

    def _number(self, text: str, start: int) -> Value:
        """Return `text` as a number, or unchanged if it is not one."""
        if (number := size_of(text)) is not None:
            if not -(1 << INTEGER_BITS - 1) <= number < 1 << INTEGER_BITS - 1:
                self._fail(f"integer `{text}` is out of range", start)
            return number
        return float(text) if FRACTION.fullmatch(text) else text

    def _variable(self, name: str, where: str, start: int) -> Node:
        """Return the value of `$name`: the innermost earlier key, or the environment variable."""
        for scope in reversed(self.scopes):
            if found := scope.get(name):
                found.used = True
                return Node(found.value, where, found.text)
        context = self.context
        if name not in context.environ:
            self._fail(
                f"variable `${name}` is neither an earlier key nor in the environment", start
            )
        if name in context.resolving:
            self._fail(f"variable `${name}` refers to itself", start)
        inner = _Context(context.environ, None, resolving=(*context.resolving, name))
        source = f"environment variable {name}"
        found = _Parser(context.environ[name], source, inner).lone_value()
        return Node(found.value, where, found.text)

    def _include(self, block: Block) -> None:
        """Add the keys of another file to `block`. Its path is relative to this file."""
        start = self.index
        name = (
            self._quoted() if self._here() in QUOTED else self._match(BARE_PATH, "expected a file")
        )
        path = str(Path(self.source).parent / name)
        chain = (*self.context.including, str(Path(path).resolve()))
        if chain[-1] in chain[:-1]:
            self._fail(f"`{name}` includes itself", start)
        if self.context.read_text is None:
            self._fail("`include` works only in files", start)
        try:
            text = self.context.read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            self._fail(f"cannot read include file `{name}`: {_reason(error)}", start)
        inner = _Context(
            self.context.environ, self.context.read_text, tuple(self.scopes[:-1]), chain
        )
        _Parser(text, path, inner).document(block)

    def _quoted(self) -> str:
        """Parse a quoted string. Only double quotes support escapes."""
        start, quote = self.index, self._here()
        text = self._match(QUOTED[quote], f"`{quote}` has no closing quote")[1:-1]
        return self._unescape(text, start + 1) if quote == '"' else text

    def _unescape(self, text: str, start: int) -> str:
        """Replace the escapes of `text`. `\\xXX` is one byte of UTF-8."""

        def replace(match: re.Match[str]) -> str:
            name = match[1]
            if name in ESCAPES:
                return ESCAPES[name]
            if len(name) == 5:
                return chr(int(name[1:], 16))
            if len(name) == 3:
                return chr(0xDC00 + code) if (code := int(name[1:], 16)) > 0x7F else chr(code)
            self._fail(f"invalid escape `\\{name}`", start + match.start())

        replaced = ESCAPE.sub(replace, text)
        try:
            # JSON's surrogate pairs and the bytes of `\x` become characters here.
            joined = replaced.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            return joined.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
        except UnicodeError:
            self._fail("half a surrogate pair", start)

    def _next_char(self) -> str:
        """Skip white space and comments. Return the next character."""
        self._skip(GAP)
        return self._here()

    def _here(self) -> str:
        """Return the character at this position, empty at the end of the text."""
        return self.text[self.index : self.index + 1]

    def _shown(self) -> str:
        """Return the character at this position for an error message."""
        char = self._here()
        return {"": "the end of the file", "\n": "a newline", "\r": "a newline"}.get(
            char, f"`{char}`"
        )

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Skip what `pattern` matches here. Return whether it matched."""
        match = pattern.match(self.text, self.index)
        start, self.index = self.index, match.end() if match else self.index
        return self.index > start

    def _match(self, pattern: re.Pattern[str], otherwise: str) -> str:
        """Return and skip what `pattern` matches here; otherwise fail with `otherwise`."""
        match = pattern.match(self.text, self.index)
        if match is None:
            self._fail(otherwise)
        self.index = match.end()
        return match[0]

    def _where(self, index: int | None = None) -> str:
        """Return a position as `file:line:column`, both counted from one."""
        index = self.index if index is None else index
        line = bisect_right(self.line_starts, index)
        return f"{self.source}:{line}:{index - self.line_starts[line - 1] + 1}"

    def _fail(self, reason: str, index: int | None = None) -> NoReturn:
        raise ConfigError(f"Parse error in {self._where(index)}: {reason}")


def _plain(value: Value) -> Any:
    if isinstance(value, dict):
        return plain(value)
    if isinstance(value, list):
        return [_plain(node.value) for node in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _reason(error: OSError | UnicodeDecodeError) -> str:
    """Return the part of an error that helps an operator."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
