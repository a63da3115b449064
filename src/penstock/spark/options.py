"""
Every option of the source and of the sink, once.

Spark hands options over as strings in any case. The fields below are their only
definition: `maxMessagesPerTrigger` is the field `max_messages_per_trigger`, its
type says how the string is read, its metadata what it means.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from itertools import combinations
from math import inf
from typing import Any, TypeVar

from penstock.client.connection.servers import parse_url, split_urls
from penstock.client.jetstream.api import FORBIDDEN_IN_NAMES
from penstock.client.options import ClientOptions, tls_context
from penstock.config.setting import setting
from penstock.errors import ConfigError
from penstock.protocol import wellknown
from penstock.protocol.subjects import contains, is_valid, overlap
from penstock.protocol.suggestions import nearest
from penstock.protocol.times import SECOND_NS
from penstock.protocol.units import read_duration, read_size
from penstock.spark.envelopes.payload import FORMATS as PAYLOAD_FORMATS
from penstock.spark.source.position import Positions, parse_positions
from penstock.spark.source.schema import COLUMNS, FORMATS, types_of

T = TypeVar("T")
Seconds = float

SPARKS_OWN = frozenset(("checkpointlocation", "path", "queryname"))
"""Options that Spark passes along although they are meant for itself."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """How source and sink reach the servers."""

    servers: str = setting(
        "nats://127.0.0.1:4222", "Where to connect to, commas between.", secret=True
    )
    user: str | None = setting(None, "User name.")
    password: str | None = setting(None, "Password of the user.", secret=True)
    token: str | None = setting(None, "Authentication token.", secret=True)
    # Spark shows options in plans and errors, but not if their names speak of a secret.
    nkey_seed_secret: str | None = setting(None, "Seed of an nkey user, `SU…`.", secret=True)
    credentials: str | None = setting(None, "Path of a creds file, on every executor.")
    tls_ca: str | None = setting(None, "Path of the certificates to trust.")
    tls_certificate: str | None = setting(None, "Path of the client's certificate.")
    tls_key: str | None = setting(None, "Path of the client's key.")
    tls_hostname: str | None = setting(None, "Name the server's certificate must be for.")
    tls_handshake_first: bool = setting(False, "Start TLS before the server's INFO.")
    api_prefix: str = setting(wellknown.API, "Subject all JetStream API calls start with.")
    inbox_prefix: str = setting(
        wellknown.INBOX, "Subject that answers come to, below a token of ours."
    )
    timeout_seconds: float = setting(10.0, "Time a connect, an answer or an ack may take.")
    retry_timeout_seconds: float = setting(
        120.0, "How long servers may be away until a query gives up: reader, driver and sink."
    )

    def __post_init__(self) -> None:
        self.client()
        for url in split_urls(self.servers):
            server = parse_url(url)
            if server.user or server.token:
                raise ConfigError(
                    f"`servers` must not say who we are, because Spark shows it: "
                    f"`{server.address}`; hint: `user` and `password`, or `token`"
                )
        _check_positive(self)

    def client(self) -> ClientOptions:
        """Return them as the client's own options: they say who we are."""
        return ClientOptions(
            servers=split_urls(self.servers),
            user=self.user,
            password=self.password,
            token=self.token,
            nkey_seed=self.nkey_seed_secret,
            credentials=self.credentials,
            tls_hostname=self.tls_hostname,
            tls_handshake_first=self.tls_handshake_first,
        )

    @property
    def identity(self) -> str:
        """The names of the options that say who we are."""
        names = ("user", "password", "token", "nkey_seed_secret", "credentials")
        given = [f"`{option_name(name)}`" for name in names if getattr(self, name) is not None]
        return ", ".join(given)

    def tls(self) -> ssl.SSLContext:
        """Return a TLS context; made where it is used, because it cannot be pickled."""
        return tls_context(self.tls_ca, self.tls_certificate, self.tls_key)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options that choose what to read, and how."""

    stream: str = setting(
        "", "Name of the stream, or of several, commas between. This or `streamPattern` is needed."
    )
    stream_pattern: str = setting(
        "",
        "Regular expression of the names of streams. A query that runs finds new ones, and reads"
        " them from their start.",
    )
    subjects: tuple[str, ...] = setting((), "Subjects to read, wildcards too; commas between.")
    starting_position: Positions = field(
        default=Positions(),
        metadata={
            "doc": "`earliest`, `latest`, a sequence, or a time: 2026-11-15T08:00Z, or milliseconds"
            ' since 1970. For each stream its own: `{"A": 17, "B": "latest"}`; those that are not'
            " named are read from their start."
        },
    )
    ending_position: Positions = field(
        default=Positions(),
        metadata={
            "doc": "The same, inclusive; a batch ends there, or at the end of streams that are not"
            " named. A streaming query has none."
        },
    )
    max_messages_per_trigger: int | None = setting(
        None, "Messages one micro-batch may hold, of all streams in proportion to what waits."
    )
    max_bytes_per_trigger: int | None = setting(
        None, "Bytes one micro-batch may hold, about: sizes are known from samples."
    )
    min_messages_per_trigger: int | None = setting(
        None,
        "Messages that have to wait before a micro-batch begins, or `maxTriggerDelay` is over.",
    )
    max_trigger_delay: Seconds = field(
        default=900.0,
        metadata={
            "doc": "How long `minMessagesPerTrigger` may put a micro-batch off, since the last one"
            " began: `30s`, `15m`."
        },
    )
    min_partitions: int | None = setting(
        None, "Tasks a range is split into; as many as the cluster runs at once, if it is large."
    )
    max_messages_per_partition: int | None = setting(None, "Messages one task may read, about.")
    fail_on_data_loss: bool = setting(True, "Fail when messages are gone before they were read.")
    columns: tuple[str, ...] = setting(COLUMNS, "Columns to produce; `.schema(…)` does the same.")
    decompress: bool = setting(
        False, "Decompress in `data` what the bus has compressed, with zstd or lz4."
    )
    format: str = setting(
        "raw", "`envelope` opens the events of the bus: their fields in the place of `data`."
    )
    payload_format: str = setting(
        "json", "Of the envelope's payload: `json`, or `avro` or `protobuf` as base64."
    )
    payload_schema: str = setting(
        "",
        "Of the payload: in Spark's SQL for JSON (without it the payload is text), for Avro the"
        " schema or its file, for Protobuf the file of a descriptor set.",
    )
    payload_message: str = setting("", "Protobuf: the message of the set, `package.Message`.")
    filter_pushdown: bool = setting(
        False, "Batch: narrow the range by `where`; needs spark.sql.python.filterPushdown.enabled."
    )
    batch_bytes_max: int = setting(8 * 1024 * 1024, "Size of an Arrow batch.")
    fetch_bytes_max: int = setting(16 * 1024 * 1024, "Size of one pull; two are under way.")

    def __post_init__(self) -> None:
        self._check_streams()
        self._check_subjects()
        for name, value, valid in (
            ("format", self.format, FORMATS),
            ("payloadFormat", self.payload_format, PAYLOAD_FORMATS),
        ):
            if value not in valid:
                raise ConfigError(f"`{name}` cannot be `{value}`; {_valid(valid)}")
        self._check_payload()
        known = types_of(self.format)
        if not self.columns:
            raise ConfigError(f"`columns` names none; {_valid(known)}")
        for column in self.columns:
            if column not in known and self.columns != COLUMNS:
                raise ConfigError(f"`columns`: there is no `{column}`; {_valid(known)}")
        _check_positive(self)
        least, most = self.min_messages_per_trigger, self.max_messages_per_trigger
        if least is not None and most is not None and least > most:
            raise ConfigError("`minMessagesPerTrigger` is more than `maxMessagesPerTrigger`")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that are named; none if they are found by their pattern."""
        return _names(self.stream)

    def selects(self, stream: str) -> bool:
        """Tell whether a stream is one to read."""
        if self.stream_pattern:
            return re.fullmatch(self.stream_pattern, stream) is not None
        return stream in self.streams

    def of(self, stream: str) -> SourceOptions:
        """Return the options for reading one of the streams."""
        return replace(
            self,
            stream=stream,
            stream_pattern="",
            starting_position=Positions(),
            ending_position=Positions(),
        )

    def _check_payload(self) -> None:
        """Raise for what would be of no effect."""
        given = self.payload_format != "json", self.payload_schema, self.payload_message
        names = ("payloadFormat", "payloadSchema", "payloadMessage")
        for name, is_given in zip(names, given, strict=True):
            if is_given and self.format != "envelope":
                raise ConfigError(f"`{name}` is of the events that `format` = `envelope` opens")
        if self.payload_message and self.payload_format != "protobuf":
            raise ConfigError("`payloadMessage` is of `payloadFormat` = `protobuf`")

    def _check_subjects(self) -> None:
        for subject in self.subjects:
            if not is_valid(subject.encode()):
                raise ConfigError(f"`subjects`: `{subject}` is no subject")
        object.__setattr__(self, "subjects", _widest(self.subjects))
        for one, other in combinations(self.subjects, 2):
            if overlap(one.encode(), other.encode()):
                raise ConfigError(
                    f"`subjects`: `{one}` and `{other}` have subjects in common, which servers "
                    "refuse; hint: name a wider one, and choose rows by `where`"
                )

    def _check_streams(self) -> None:
        if not self.streams and not self.stream_pattern:
            raise ConfigError("`stream` is missing; hint: .option('stream', 'ORDERS')")
        if self.streams and self.stream_pattern:
            raise ConfigError("streams are named either by `stream` or by `streamPattern`")
        for name in self.streams:
            if FORBIDDEN_IN_NAMES & set(name):
                raise ConfigError(f"`stream`: `{name}` is no name of a stream")
        try:
            re.compile(self.stream_pattern)
        except re.error as error:
            raise ConfigError(f"`streamPattern` is no regular expression: {error}") from None
        for option in ("starting_position", "ending_position"):
            for name in getattr(self, option).streams:
                if not self.selects(name):
                    raise ConfigError(f"`{option_name(option)}`: `{name}` is no stream to read")


MESSAGE_IDS = ("required", "optional", "none")
NATS_HEADERS = ("drop", "keep")


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Where and how to write."""

    subject: str = setting("", "Subject of every row; without it there is a column `subject`.")
    stream: str = setting("", "Stream that has to store the rows; others are refused.")
    message_ids: str = setting(
        "required",
        "`required`: every row has a `message_id`, or the `stream` and `sequence` it comes from;"
        " `optional`: a row whose `message_id` is null has none; `none`: no row has one, and"
        " what is tried again may be stored twice.",
    )
    message_id_prefix: str = setting(
        "",
        "What ids made of `stream` and `sequence` start with; a batch job that gives it can be"
        " run again, as long as the target holds what it stored.",
    )
    nats_headers: str = setting(
        "drop",
        "What to do with `Nats-…` in the column `headers`, which the server would act on: `drop`"
        " or `keep`.",
    )
    window: int = setting(4096, "Unacked messages at which a task waits.")
    rate_per_second: int | None = setting(None, "Messages a second of one task; unlimited.")

    def __post_init__(self) -> None:
        if self.subject and not is_valid(self.subject.encode()):
            raise ConfigError(f"`subject`: `{self.subject}` is no subject")
        for name, value, valid in (
            ("messageIds", self.message_ids, MESSAGE_IDS),
            ("natsHeaders", self.nats_headers, NATS_HEADERS),
        ):
            if value not in valid:
                raise ConfigError(f"`{name}` cannot be `{value}`; {_valid(valid)}")
        _check_positive(self)


def parse_source(given: Mapping[str, str]) -> tuple[ConnectionOptions, SourceOptions]:
    """Read the options of `spark.read` and `spark.readStream`."""
    return _parse(given, ConnectionOptions, SourceOptions, what="source")


def parse_sink(given: Mapping[str, str]) -> tuple[ConnectionOptions, SinkOptions]:
    """Read the options of `df.write` and `df.writeStream`."""
    return _parse(given, ConnectionOptions, SinkOptions, what="sink")


def connection_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return those of the given options that say how to reach the servers."""
    own = {option_name(item.name).lower() for item in fields(ConnectionOptions)}
    return {name: value for name, value in given.items() if name.lower() in own}


def option_name(field_name: str) -> str:
    """Spell a field as Spark spells options: `min_partitions` is `minPartitions`."""
    first, *others = field_name.split("_")
    return first + "".join(word.capitalize() for word in others)


def reference(options: type) -> str:
    """Return the options of a class as lines of a manual."""
    return "\n".join(f"- `{option_name(f.name)}`: {f.metadata['doc']}" for f in fields(options))


def _parse(
    given: Mapping[str, str], connection: type[ConnectionOptions], kind: type[T], *, what: str
) -> tuple[ConnectionOptions, T]:
    kinds: tuple[Any, ...] = (connection, kind)
    names = {option_name(f.name): f for options in kinds for f in fields(options)}
    spellings = {name.lower(): name for name in names}
    values: dict[str, Any] = {}
    for option, text in given.items():
        if option.lower() in SPARKS_OWN:
            continue
        name = spellings.get(option.lower())
        if name is None:
            raise ConfigError(_unknown(option, names, what))
        values[names[name].name] = _read(name, names[name], text)
    own = {f.name for f in fields(connection)}
    return (
        connection(**{name: value for name, value in values.items() if name in own}),
        kind(**{name: value for name, value in values.items() if name not in own}),
    )


def _unknown(option: str, names: Iterable[str], what: str) -> str:
    meant = nearest(option, names)
    hint = f"did you mean `{meant}`? " if meant else ""
    return f"the penstock {what} has no option `{option}`; {hint}{_valid(names)}"


def _valid(names: Iterable[str]) -> str:
    return f"valid: {', '.join(f'`{name}`' for name in names)}"


def _read(name: str, item: Field[Any], text: str) -> Any:
    kind = str(item.type).removesuffix(" | None")
    reader, expected = READERS[kind]
    try:
        return reader(text)
    except (ValueError, OverflowError, OSError):
        # A number may be beyond all times, which is no ValueError.
        raise ConfigError(f"`{name}` must be {expected}: `{text}`") from None


def _widest(subjects: Iterable[str]) -> tuple[str, ...]:
    """Return the subjects without repetition, and without those that another one contains."""
    unique = dict.fromkeys(subjects)
    return tuple(
        each
        for each in unique
        if not any(each != wider and contains(wider.encode(), each.encode()) for wider in unique)
    )


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _seconds(text: str) -> float:
    return read_duration(text) / SECOND_NS


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "str": (str, "text"),
    "int": (read_size, "a whole number"),
    "float": (float, "a number"),
    "bool": (_boolean, "`true` or `false`"),
    "tuple[str, ...]": (_names, "names with commas between"),
    "Seconds": (_seconds, "a duration such as `30s` or `15m`"),
    "Positions": (parse_positions, "`earliest`, `latest`, a sequence or a time"),
}


def _check_positive(options: Any) -> None:
    for item in fields(options):
        value = getattr(options, item.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not 0 <= value < inf or (value == 0 and item.name != "retry_timeout_seconds"):
            raise ConfigError(f"`{option_name(item.name)}` must be positive: {value}")
