"""The API calls about consumers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import JetStreamError
from penstock.jetstream.api.api import Answer, ApiRequest, Call, Portions
from penstock.jetstream.config.consumer import CONSUMER_CONFIG_FIELDS, ConsumerConfig
from penstock.jetstream.config.consumerrules import check_group_name
from penstock.jetstream.consumers import backlog, consumers
from penstock.jetstream.consumers.consumer import Consumer
from penstock.jetstream.copies import sourcing
from penstock.protocol import errorcodes, headers, strictjson, subjects
from penstock.protocol.rfc3339 import ZERO, parse_time

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

NAMES_MAX = 1024
LIST_MAX = 256

CREATE_FIELDS = {
    "stream_name": "string",
    "config": CONSUMER_CONFIG_FIELDS,
    "action": strictjson.ANYTHING,
    "pedantic": "bool",
}
ACTIONS = ("", "create", "update")
LIST_FIELDS = {"offset": "int"}
PAUSE_FIELDS = {"pause_until": "string"}
UNPIN_FIELDS = {"group": "string"}
RESET_FIELDS = {"seq": "uint64"}
UNPAUSED = {"paused": False, "pause_until": ZERO}
UNPAGED = {"total": 0, "offset": 0, "limit": 0}


def create(request: ApiRequest) -> Portions:
    """`CONSUMER.CREATE.<stream>[.<name>[.<filter>]]`."""
    values, config = _decode(request)
    stream_name = request.names[0]
    name = request.names[1] if len(request.names) > 1 else ""
    filter_subject = ".".join(request.names[2:])
    _check_stream(values, stream_name)
    _check_separators(name or config.name)
    if not name:
        if config.durable_name:
            raise JetStreamError(errorcodes.CONSUMER_EPHEMERAL_WITH_DURABLE_NAME)
        name = config.name
    elif config.durable_name and config.durable_name != name:
        raise JetStreamError(errorcodes.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT)
    if filter_subject and config.filter_subjects:
        raise JetStreamError(errorcodes.CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED)
    if filter_subject and config.filter_subject != filter_subject:
        raise JetStreamError(errorcodes.CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH)
    yield from _create(request, values, config.but(name=name))
    return None


def create_durable(request: ApiRequest) -> Portions:
    """`CONSUMER.DURABLE.CREATE.<stream>.<name>`: the older way, when only durables had names."""
    values, config = _decode(request)
    if len(request.names) != 2:
        raise JetStreamError(errorcodes.CONSUMER_DURABLE_NAME_NOT_IN_SUBJECT)
    stream_name, name = request.names
    _check_stream(values, stream_name)
    _check_separators(name)
    if not config.durable_name:
        raise JetStreamError(errorcodes.CONSUMER_DURABLE_NAME_NOT_SET)
    if config.durable_name != name:
        raise JetStreamError(errorcodes.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT)
    yield from _create(request, values, config.but(name=name))
    return None


def _decode(request: ApiRequest) -> tuple[dict[str, Any], ConsumerConfig]:
    values = request.decode(CREATE_FIELDS, "CreateConsumerRequest")
    action = values.setdefault("action", "")
    if action not in ACTIONS:
        error = f"unknown consumer action: {json.dumps(action)}"
        raise JetStreamError(errorcodes.INVALID_JSON, err=error)
    config = ConsumerConfig.from_json(values.get("config", {}))
    _check_time(config.opt_start_time)
    _check_time(config.pause_until)
    return values, config


def _check_time(text: str) -> int:
    """Return a time, 0 if it is missing. An invalid time is refused: to Go it is bad JSON."""
    try:
        return parse_time(text) if text else 0
    except ValueError as error:
        raise JetStreamError(errorcodes.INVALID_JSON, err=error) from None


def _check_stream(values: dict[str, Any], stream_name: str) -> None:
    if values.get("stream_name", "") != stream_name:
        raise JetStreamError(errorcodes.STREAM_MISMATCH)


def _check_separators(name: str) -> None:
    if "/" in name or "\\" in name:
        raise JetStreamError(errorcodes.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS)


def _create(request: ApiRequest, values: dict[str, Any], config: ConsumerConfig) -> Portions:
    """Make or change a consumer; answer when that is safe."""
    if config.num_replicas > 1:
        raise JetStreamError(errorcodes.STREAM_REPLICAS_NOT_SUPPORTED)
    yield from _count_ahead(request.stream(), config)
    if not _needs_survey(config):
        _create_now(request, values, config)
        return None
    with request.stream().store.survey(config.filters) as steps:
        yield from steps
        _create_now(request, values, config)
    return None


def _count_ahead(stream: Stream, config: ConsumerConfig) -> Iterator[None]:
    """Count what a consumer with a filter still has to get, where that means a look at messages."""
    existing = stream.consumers.get(config.name or config.durable_name)
    if existing is not None:
        yield from stream.store.count_ahead(existing.backlog.uncounted_sequence, config.filters)
    elif _begins_somewhere(config):
        limit = stream.config.max_msgs_per_subject
        sequence, _ = backlog.start(config, stream.store, limit)
        yield from stream.store.count_ahead(sequence, config.filters)


def _begins_somewhere(config: ConsumerConfig) -> bool:
    """Tell whether a consumer begins at a sequence or a time; one that is missing is an error."""
    if config.deliver_policy == "by_start_sequence":
        return config.opt_start_seq > 0
    return config.deliver_policy == "by_start_time" and bool(config.opt_start_time)


def _needs_survey(config: ConsumerConfig) -> bool:
    """Tell whether a new consumer first has to look at many subjects."""
    if config.deliver_policy in ("new", "by_start_sequence", "by_start_time"):
        return False
    is_last = config.deliver_policy == "last_per_subject"
    wide = [each for each in config.filters if not subjects.is_literal(each)]
    return bool(set(wide) - {b">"}) or (is_last and bool(wide or not config.filters))


def _create_now(request: ApiRequest, values: dict[str, Any], config: ConsumerConfig) -> None:
    stream = request.stream()
    answer: consumers.Answer = request.answer
    if config.is_private:
        sourcing.check_identity(stream.identity, request.header)
        config = sourcing.served(
            config, retention=stream.config.retention, new_id=stream.context.new_id
        )
        answer = partial(request.answer, header=sourcing.identity_header(stream.identity))
    consumers.create(
        stream,
        config,
        action=values["action"],
        pedantic=values.get("pedantic", False),
        answer=answer,
    )


def info(request: ApiRequest) -> Portions:
    """`CONSUMER.INFO.<stream>.<consumer>`."""
    if not request.is_empty:
        raise JetStreamError(errorcodes.NOT_EMPTY_REQUEST)
    yield from _consumer(request).backlog.count_ahead()
    return _consumer(request).info()


def delete(request: ApiRequest) -> Answer:
    """`CONSUMER.DELETE.<stream>.<consumer>`."""
    if not request.is_empty:
        raise JetStreamError(errorcodes.NOT_EMPTY_REQUEST)
    _consumer(request).delete(lambda: request.answer({"success": True}))
    return None


def pause(request: ApiRequest) -> Answer:
    """`CONSUMER.PAUSE.<stream>.<consumer>`: pause until a time, or resume."""
    options = request.decode_options(PAUSE_FIELDS, "JSApiConsumerPauseRequest")
    until_ns = _check_time(options.get("pause_until", ""))
    consumers.pause(_consumer(request), until_ns, request.answer)
    return None


def unpin(request: ApiRequest) -> Answer:
    """`CONSUMER.UNPIN.<stream>.<consumer>`: let another client of a group be pinned."""
    if not request.body.strip():
        raise JetStreamError(errorcodes.INVALID_JSON, err="unexpected end of JSON input")
    group = request.decode_loosely(UNPIN_FIELDS, "JSApiConsumerUnpinRequest").get("group", "")
    if not group:
        raise JetStreamError(errorcodes.INVALID_JSON, err="consumer group not specified")
    check_group_name(group)
    consumer = _consumer(request)
    if group not in consumer.config.priority_groups:
        raise JetStreamError(errorcodes.CONSUMER_INVALID_PRIORITY_GROUP)
    consumer.unpin(group)
    return {}


def reset(request: ApiRequest) -> Portions:
    """`CONSUMER.RESET.<stream>.<consumer>`: begin again. An unknown consumer gets no answer."""
    stream = request.engine.streams.get(request.names[0])
    consumer = stream.consumers.get(request.names[1]) if stream is not None else None
    if stream is None or consumer is None:
        return None
    options = request.decode_loosely(RESET_FIELDS, "JSApiConsumerResetRequest")
    sequence = options.get("seq", 0) or consumers.unacked_sequence(consumer)
    begins_late = sequence < consumer.resume_sequence
    whence = consumer.resume_sequence if begins_late else sequence
    yield from stream.store.count_ahead(whence, consumer.filters)
    with stream.store.survey(consumer.filters) if begins_late else nullcontext(()) as steps:
        yield from steps
        if consumer.is_closed:
            raise JetStreamError(errorcodes.CONSUMER_NOT_FOUND)
        answer: consumers.Answer = request.answer
        if headers.get(request.header, sourcing.IDENTITY.encode()) is not None:
            answer = partial(request.answer, header=sourcing.identity_header(stream.identity))
        consumers.reset(consumer, options.get("seq", 0), answer)
    return None


def names(request: ApiRequest) -> Answer:
    """`CONSUMER.NAMES.<stream>`."""
    found, page = _page(request, NAMES_MAX, "JSApiConsumersRequest")
    return page | {"consumers": [consumer.name for consumer in found]}


def list_consumers(request: ApiRequest) -> Portions:
    """`CONSUMER.LIST.<stream>`."""
    found, page = _page(request, LIST_MAX, "JSApiConsumersRequest")
    infos = []
    for consumer in found:
        yield from consumer.backlog.count_ahead()
        if not consumer.is_closed:
            infos.append(consumer.info())
    request.stream()  # It may be gone by now.
    return page | {"consumers": infos}


def _page(
    request: ApiRequest, count_max: int, type_name: str
) -> tuple[list[Consumer], dict[str, Any]]:
    options = request.decode_options(LIST_FIELDS, type_name)
    found = request.stream().consumers
    ordered = [found[name] for name in sorted(found) if not found[name].config.direct]
    offset = min(max(options.get("offset", 0), 0), len(ordered))
    return ordered[offset:][:count_max], {
        "total": len(ordered),
        "offset": offset,
        "limit": count_max,
    }


def _consumer(request: ApiRequest) -> Consumer:
    consumer = request.stream().consumers.get(request.names[1])
    if consumer is None:
        raise JetStreamError(errorcodes.CONSUMER_NOT_FOUND)
    return consumer


CALLS = {
    ("CONSUMER", "CREATE"): Call("consumer_create", -1, create),
    ("CONSUMER", "DURABLE", "CREATE"): Call("consumer_create", -1, create_durable),
    ("CONSUMER", "INFO"): Call("consumer_info", 2, info, is_view=True),
    ("CONSUMER", "DELETE"): Call("consumer_delete", 2, delete),
    ("CONSUMER", "PAUSE"): Call("consumer_pause", 2, pause, UNPAUSED),
    ("CONSUMER", "UNPIN"): Call("consumer_unpin", 2, unpin),
    ("CONSUMER", "RESET"): Call("consumer_reset", 2, reset, {"reset_seq": 0}, is_audited=False),
    ("CONSUMER", "NAMES"): Call("consumer_names", 1, names, UNPAGED | {"consumers": []}),
    ("CONSUMER", "LIST"): Call(
        "consumer_list", 1, list_consumers, UNPAGED | {"consumers": []}, is_view=True
    ),
}
