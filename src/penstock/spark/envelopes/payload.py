"""
How the payload of an envelope becomes a value of a column.

An envelope is JSON. Its payload is JSON too, or, with a format of its own, the bytes
of that format as base64. A decoder knows the column's type in Spark's SQL and reads
one payload; what does not fit its schema is null, as in Spark's `from_json`.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

FORMATS = ("json", "avro", "protobuf")
UNREADABLE = (ValueError, TypeError, EOFError, LookupError, ArithmeticError, RecursionError)
"""Errors for bytes that do not match the schema."""


def type_of(schema: str) -> str:
    """Return the type that a schema in Spark's SQL names: one type, or the fields of a struct."""
    is_type = re.match(r"(struct|array|map)\s*<", schema.strip(), re.IGNORECASE)
    return schema if is_type else f"struct<{schema}>"


class Decoder(Protocol):
    """Reads payloads of one schema."""

    @property
    def ddl(self) -> str:
        """The type of the column, as Spark's SQL spells it."""

    def prepare(self, kind: DataType) -> Callable[[bytes], Any]:
        """Return a function that reads the JSON text of one payload as `kind`, `ddl` parsed."""


def new_decoder(kind: str, schema: str, message: str) -> Decoder:
    """Return the decoder that the options ask for."""
    if kind == "json":
        return JsonText() if not schema else Json(schema)
    if not schema:
        raise ConfigError(f"`payloadFormat` = {kind} needs a `payloadSchema`")
    return Avro(schema) if kind == "avro" else Protobuf(schema, message)


class JsonText:
    """Leaves the payload as it is, for schemas that change from event to event."""

    ddl = "string"

    def prepare(self, kind: DataType) -> Callable[[bytes], Any]:
        """Return what makes text of it."""
        return lambda raw: raw.decode(errors="replace")


class Json:
    """Reads JSON objects by a schema in Spark's SQL."""

    def __init__(self, schema: str) -> None:
        self.ddl = type_of(schema)

    def prepare(self, kind: DataType) -> Callable[[bytes], Any]:
        """Return a reader that was made for exactly these fields."""
        import msgspec

        decode = msgspec.json.Decoder(_python_type(kind), strict=False).decode

        def read(raw: bytes) -> Any:
            try:
                return decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return None

        return read


class Avro:
    """Reads Avro's binary form, without a header, by the schema it was written with."""

    def __init__(self, schema: str) -> None:
        fastavro = _import("fastavro", "fastavro")
        try:
            text = schema if schema.lstrip().startswith("{") else Path(schema).read_text()
            self._schema = fastavro.parse_schema(json.loads(text))
        except (OSError, ValueError, fastavro.schema.SchemaParseException) as error:
            raise ConfigError(f"`payloadSchema` is no Avro schema: {error}") from None
        self.ddl = _avro_ddl(self._schema)

    def prepare(self, kind: DataType) -> Callable[[bytes], Any]:
        """Return what reads base64 of a record."""
        from fastavro import schemaless_reader

        def read(raw: bytes) -> Any:
            try:
                return schemaless_reader(io.BytesIO(_binary(raw)), self._schema, None)
            except UNREADABLE:
                return None

        return read


AVRO_TYPES = {
    "null": "void",
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
}
AVRO_LOGICAL_TYPES = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "date": "date",
    "uuid": "string",
}


def _avro_ddl(schema: Any) -> str:
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise ConfigError("`payloadSchema`: a union may only be of one type and null")
        return _avro_ddl(kinds[0])
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, dict | list):
        return _avro_ddl(kind)
    if kind == "record":
        fields = [f"`{each['name']}`: {_avro_ddl(each['type'])}" for each in schema["fields"]]
        return f"struct<{', '.join(fields)}>"
    if kind == "array":
        if _is_sizeless(schema["items"]):
            # Such items take no bytes, so a payload of ten could announce any number of them.
            raise ConfigError("`payloadSchema`: the items of an array must have something in them")
        return f"array<{_avro_ddl(schema['items'])}>"
    if kind == "map":
        return f"map<string, {_avro_ddl(schema['values'])}>"
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    found = AVRO_LOGICAL_TYPES.get(str(logical)) or AVRO_TYPES.get(kind)
    if found is None or logical == "decimal":
        raise ConfigError(f"`payloadSchema`: Avro's `{logical or kind}` has no column type here")
    return found


def _is_sizeless(schema: Any) -> bool:
    """Tell whether a value takes no bytes at all; a union says which, and that takes one."""
    if isinstance(schema, str | list):
        return schema == "null"
    if schema["type"] == "record":
        return all(_is_sizeless(each["type"]) for each in schema["fields"])
    if schema["type"] == "fixed":
        return bool(schema["size"] == 0)
    return isinstance(schema["type"], dict | str) and _is_sizeless(schema["type"])


class Protobuf:
    """Reads one message type of a descriptor set, as `protoc -o` writes it."""

    def __init__(self, path: str, message: str) -> None:
        if not message:
            raise ConfigError("`payloadMessage` must name the message, `package.Message`")
        self._path, self._message = path, message
        self.ddl = _protobuf_ddl(self._type().DESCRIPTOR)

    def prepare(self, kind: DataType) -> Callable[[bytes], Any]:
        """Return what reads base64 of a message."""
        decode_error = _import("google.protobuf.message", "protobuf").DecodeError
        message_type = self._type()

        def read(raw: bytes) -> Any:
            try:
                return _protobuf_value(message_type.FromString(_binary(raw)))
            except (*UNREADABLE, decode_error):
                return None

        return read

    def _type(self) -> Any:
        """Return the message's class; made where it is used, because it cannot be pickled."""
        sets, pools, factory = [
            _import(f"google.protobuf.{module}", "protobuf")
            for module in ("descriptor_pb2", "descriptor_pool", "message_factory")
        ]
        pool = pools.DescriptorPool()
        try:
            data = Path(self._path).read_bytes()
            for file in sets.FileDescriptorSet.FromString(data).file:
                pool.Add(file)
            descriptor = pool.FindMessageTypeByName(self._message)
        except OSError as error:
            raise ConfigError(f"`payloadSchema`: {self._path}: {error.strerror}") from None
        except KeyError:
            raise ConfigError(
                f"`payloadMessage`: `{self._message}` is not in {self._path}"
            ) from None
        return factory.GetMessageClass(descriptor)


def _protobuf_ddl(descriptor: Any) -> str:
    fields = [f"`{each.name}`: {_protobuf_field(each)}" for each in descriptor.fields]
    return f"struct<{', '.join(fields)}>"


PROTOBUF_TYPES = {
    1: "int",
    2: "bigint",
    3: "bigint",
    4: "decimal(20,0)",
    5: "double",
    6: "float",
    7: "boolean",
    8: "string",
    9: "string",
}
"""By `cpp_type`: int32, int64, uint32, uint64, double, float, bool, enum, string."""
BYTES = 12


def _protobuf_field(field: Any) -> str:
    if _is_map(field):
        key, value = field.message_type.fields
        return f"map<{_protobuf_field(key)}, {_protobuf_field(value)}>"
    if field.message_type is not None:
        kind = _protobuf_ddl(field.message_type)
    else:
        kind = "binary" if field.type == BYTES else PROTOBUF_TYPES[field.cpp_type]
    return f"array<{kind}>" if field.is_repeated else kind


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _protobuf_value(message: Any) -> dict[str, Any]:
    """Return a message as a row; fields that may be told to be missing are null then."""
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]
            row[field.name] = [(key, _protobuf_item(of, each)) for key, each in value.items()]
        elif field.is_repeated:
            row[field.name] = [_protobuf_item(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = _protobuf_item(field, value)
    return row


def _protobuf_item(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _protobuf_value(value)
    if field.enum_type is not None:
        found = field.enum_type.values_by_number.get(value)
        return found.name if found is not None else str(value)
    return value


def _binary(raw: bytes) -> bytes:
    """Return the bytes of a JSON string that holds them as base64."""
    text = json.loads(raw)
    if not isinstance(text, str):
        raise ValueError("a payload in a binary format is a string of base64")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _python_type(kind: DataType) -> Any:
    """Return a Spark type as msgspec knows it; every value may be missing."""
    from datetime import date, datetime
    from decimal import Decimal
    from typing import TypedDict

    from pyspark.sql import types as t

    scalars: dict[str, Any] = {
        "string": str,
        "boolean": bool,
        "binary": bytes,
        "date": date,
        "timestamp": datetime,
        "float": float,
        "double": float,
        "tinyint": int,
        "smallint": int,
        "int": int,
        "bigint": int,
    }
    if isinstance(kind, t.StructType):
        fields = {each.name: _python_type(each.dataType) for each in kind.fields}
        return TypedDict("Fields", fields, total=False) | None  # type: ignore[operator]
    if isinstance(kind, t.ArrayType):
        return list[_python_type(kind.elementType)] | None  # type: ignore[misc]
    if isinstance(kind, t.MapType):
        return dict[str, _python_type(kind.valueType)] | None  # type: ignore[misc]
    if isinstance(kind, t.DecimalType):
        return Decimal | None
    name = kind.simpleString()
    if name not in scalars:
        raise ConfigError(f"`payloadSchema`: a payload of JSON cannot be read as {name}")
    return scalars[name] | None


def _import(module: str, package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"`{package}` is missing; hint: pip install {package}") from None
