"""Make consumers, change them, and bring them back from disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock.errors import JetStreamError, StoreError
from penstock.jetstream.config import consumerrules
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.config.stream import StreamConfig
from penstock.jetstream.consumers import backlog
from penstock.jetstream.consumers.backlog import ConsumerBacklog, LastPerSubject
from penstock.jetstream.consumers.consumer import Consumer
from penstock.jetstream.consumers.consumerfiles import ConsumerFiles, Meta
from penstock.jetstream.consumers.consumerrecords import ConsumerState
from penstock.jetstream.consumers.ledger import Ledger
from penstock.jetstream.stream import Stream
from penstock.protocol import errorcodes
from penstock.protocol.rfc3339 import format_time, parse_time

log = logging.getLogger("penstock")

EPHEMERAL_NAME_LENGTH = 8

Answer = Callable[[dict[str, Any]], None]
"""Takes ConsumerInfo, or an error, once it is true."""


def create(
    stream: Stream, config: ConsumerConfig, *, action: str, pedantic: bool, answer: Answer
) -> None:
    """
    Make a consumer, or change the existing one, and answer when that is safe.

    `action` is `create` to insist on a new or identical one, `update` to insist on a change.
    """
    quota = stream.context.quota
    config = quota.with_ack_pending(config, stream.config)
    config = consumerrules.with_defaults(config, stream.config, pedantic=pedantic)
    consumerrules.check(config, stream.config)
    quota.check_ack_pending(config)
    existing = stream.consumers.get(config.name)
    if existing is not None:
        _update(stream, existing, config, action=action, answer=answer)
    elif action == "update":
        raise JetStreamError(errorcodes.CONSUMER_DOES_NOT_EXIST)
    else:
        quota.check_consumer(len(stream.consumers))
        is_compared = stream.config.retention == "workqueue" or stream.config.max_consumers > 0
        others = _filters(stream) if is_compared else {}
        consumerrules.check_new(config, stream.config, others, stream.consumer_filters)
        _make(stream, config, answer)


def _update(
    stream: Stream, consumer: Consumer, config: ConsumerConfig, *, action: str, answer: Answer
) -> None:
    old = consumer.config
    # A pause is not changed here: it has a call of its own.
    config = config.but(pause_until=old.pause_until)
    if action == "create" and config != old:
        raise JetStreamError(errorcodes.CONSUMER_ALREADY_EXISTS)
    config = consumerrules.with_name(config, consumer.name)
    if config.sourcing:
        # Its acks say where it continues.
        places = ("deliver_policy", "opt_start_seq", "opt_start_time")
        config = config.but(**{name: getattr(old, name) for name in places})
    if stream.config.retention == "workqueue" and not config.is_private:
        others = _filters(stream, besides=consumer)
        consumerrules.check_unique(config, others, stream.consumer_filters)
    if config == old:
        answer(consumer.info())
    else:
        # Another stream uses a new subject each time, so nobody listens to its last one.
        is_bound = consumer.outlet.is_bound and not config.sourcing
        consumerrules.check_update(old, config, is_bound=is_bound)
        consumer.update(config)
        if config.sourcing:
            consumer.restart(unacked_sequence(consumer))
        _keep(consumer, consumer.info(), answer)
        consumer.deliver()
    if consumer.paused_until_ns:
        consumer.advise_pause()


def pause(consumer: Consumer, until_ns: int, answer: Answer) -> None:
    """Pause a consumer until a time, or resume it; answer when that is safe."""
    until = format_time(until_ns) if until_ns else ""
    consumer.update(consumer.config.but(pause_until=until))
    document: dict[str, Any] = {
        "paused": consumer.paused_until_ns > 0,
        "pause_until": format_time(until_ns),
    }
    if consumer.paused_until_ns:
        document["pause_remaining"] = until_ns - consumer.stream.context.clock_ns()
    _keep(consumer, document, answer)


def reset(consumer: Consumer, sequence: int, answer: Answer) -> None:
    """Let a consumer begin again at a sequence; with 0, after everything that is acked."""
    if sequence:
        _check_reset(consumer, sequence)
    else:
        sequence = unacked_sequence(consumer)
    consumer.restart(sequence)
    _keep(consumer, consumer.info() | {"reset_seq": sequence}, answer)
    consumer.deliver()


def unacked_sequence(consumer: Consumer) -> int:
    """Return the first sequence that a consumer has not settled."""
    return consumer.ledger.floor(consumer.backlog.next_sequence)[1] + 1


def _check_reset(consumer: Consumer, sequence: int) -> None:
    """Refuse a start that the consumer's deliver policy would not allow."""
    config = consumer.config
    problem = ""
    if config.deliver_policy == "by_start_sequence":
        problem = "below start seq" if sequence < config.opt_start_seq else ""
    elif config.deliver_policy == "by_start_time":
        start = consumer.stream.store.sequence_at(parse_time(config.opt_start_time))
        problem = "below start time" if sequence < start else ""
    elif config.deliver_policy != "all":
        problem = "not allowed"
    if problem:
        raise JetStreamError(errorcodes.CONSUMER_INVALID_RESET, err=problem)


def _make(stream: Stream, config: ConsumerConfig, answer: Answer) -> None:
    context = stream.context
    name = config.name
    while not name or name in stream.consumers:
        name = context.new_id(EPHEMERAL_NAME_LENGTH)
    config = consumerrules.with_name(config, name)
    limit = stream.config.max_msgs_per_subject
    sequence, selected = backlog.start(config, stream.store, limit)
    consumer = Consumer(
        stream,
        config,
        created_ns=context.clock_ns(),
        backlog=_backlog(stream, config, sequence, selected),
        ledger=Ledger(sequence),
        files=_files(stream, config),
        resume_sequence=selected.resume_sequence if selected is not None else 0,
    )
    stream.consumers[name] = consumer
    stream.consumers_changed()
    if consumer.files is not None:
        consumer.files.log.put(name, consumer.state())
    consumer.bind()
    _keep(consumer, consumer.info(), answer, is_new=True)
    context.advisories.consumer_action(stream.name, name, "create")
    if consumer.paused_until_ns:
        consumer.advise_pause()
    consumer.deliver()


def _keep(
    consumer: Consumer, info: dict[str, Any], answer: Answer, *, is_new: bool = False
) -> None:
    """Write a consumer to disk, unless it is in memory, and answer then."""
    if consumer.files is None:
        answer(info)
        return

    def done(error: Exception | None) -> None:
        if error is not None:
            failed = JetStreamError(errorcodes.CONSUMER_STORE_FAILED, err=error)
            answer({"error": failed.document})
            if is_new and not consumer.is_closed:
                consumer.delete()
        else:
            answer(info)

    meta = Meta(consumer.config, consumer.created_ns, consumer.resume_sequence)
    consumer.files.write(meta, done)


def _files(stream: Stream, config: ConsumerConfig) -> ConsumerFiles | None:
    """Return the files for a consumer; None if it is in memory only."""
    if config.mem_storage or config.direct or stream.config.storage == "memory":
        return None
    if stream.consumer_files is None:
        try:
            open_files(stream)
        except (OSError, StoreError) as error:
            raise JetStreamError(errorcodes.CONSUMER_STORE_FAILED, err=error) from error
    return stream.consumer_files


def open_files(stream: Stream) -> ConsumerFiles:
    """Open the files of a stream's consumers."""
    files = stream.consumer_files = ConsumerFiles(stream.context, stream.name)
    files.log.snapshot = lambda: (
        files.unserved
        | {
            name: consumer.state()
            for name, consumer in stream.consumers.items()
            if consumer.files is not None
        }
    )
    return files


def check_limits(stream: Stream, config: StreamConfig) -> None:
    """Refuse limits for the consumers of a stream that one of them exceeds already."""
    over = [
        name
        for name, each in stream.consumers.items()
        if consumerrules.is_over(each.config, config)
    ]
    if over:
        text = f"change to limits violates consumers: {', '.join(sorted(over))}"
        raise JetStreamError(errorcodes.STREAM_UPDATE, err=text)


def _filters(stream: Stream, *, besides: Consumer | None = None) -> consumerrules.Others:
    return {
        name: each.filters
        for name, each in stream.consumers.items()
        if each is not besides and not each.config.is_private
    }


def recover(stream: Stream) -> None:
    """Bring back the consumers of a stream; an unreadable one does not keep the others away."""
    if not stream.context.files.has_consumers(stream.name):
        return
    try:
        files = open_files(stream)
    except (OSError, StoreError) as error:
        _complain(stream, "its consumers", error)
        return
    stream.losses.tell(files.faults)
    _go_on_behind(stream, files)
    unconfigured = set(files.states)
    for name in files.names():
        try:
            meta = files.read(name)
            if meta is not None:
                unconfigured.discard(name)
                stream.consumers[name] = _recovered(stream, files, meta)
        except Exception as error:
            unconfigured.discard(name)
            if name in files.states:
                files.unserved[name] = files.states[name]
            _complain(stream, f"consumer `{name}`", error)
    stream.losses.tell(
        f"consumer `{name}` has a state, and no configuration" for name in unconfigured
    )
    files.states.clear()
    for consumer in tuple(stream.consumers.values()):
        consumer.drop_settled()
    stream.consumers_changed()
    for consumer in tuple(stream.consumers.values()):
        try:
            consumer.open()
        except Exception as error:
            _complain(stream, f"consumer `{consumer.name}`", error)


def _go_on_behind(stream: Stream, files: ConsumerFiles) -> None:
    """
    Give no sequence again that a consumer was given: it would not be given the new message.

    Its position may survive a message that was never durable, or that is missing now.
    """
    store = stream.store
    known = max((state.delivered_stream_sequence for state in files.states.values()), default=0)
    # A mirror gets the same messages again.
    if known <= store.last_sequence or stream.config.mirror is not None:
        return
    log.warning(
        "Stream '%s > %s' ends at message %d, and a consumer is at message %d: "
        "the stream goes on behind that",
        stream.context.account.name,
        stream.name,
        store.last_sequence,
        known,
    )
    store.skip(known - store.last_sequence)
    stream.context.touch(stream)


def _complain(stream: Stream, what: str, error: Exception) -> None:
    account = stream.context.account.name
    log.error("Stream '%s > %s': %s cannot be recovered: %s", account, stream.name, what, error)
    stream.unreadable_consumer = f"{what}: {error}"


def restore(
    stream: Stream, config: ConsumerConfig, state: ConsumerState, *, answer: Answer
) -> None:
    """Add a consumer from a snapshot of its stream; it continues where it was."""
    config = consumerrules.with_defaults(config, stream.config)
    consumerrules.check(config, stream.config)
    consumerrules.check_name_length(config.name)
    stream.context.quota.check_ack_pending(config)
    stream.context.quota.check_consumer(len(stream.consumers))
    meta = Meta(config, stream.context.clock_ns(), 0)
    consumer = _at_state(stream, _files(stream, config), meta, state)
    stream.consumers[config.name] = consumer
    stream.consumers_changed()
    if consumer.files is not None:
        consumer.files.log.put(config.name, consumer.state())
    _keep(consumer, {}, answer)
    consumer.open()


def _recovered(stream: Stream, files: ConsumerFiles, meta: Meta) -> Consumer:
    """Return a consumer with its recovered state; a fresh one if its state was never written."""
    return _at_state(stream, files, meta, files.states.get(meta.config.name))


def _at_state(
    stream: Stream, files: ConsumerFiles | None, meta: Meta, state: ConsumerState | None
) -> Consumer:
    config, store = meta.config, stream.store
    if state is None:
        limit = stream.config.max_msgs_per_subject
        sequence, selected = backlog.start(config, store, limit)
        ledger = Ledger(sequence)
    else:
        ledger = Ledger.restore(state, config.ack_waits_ns, stream.context.clock_ns())
        sequence = max(ledger.delivered_sequence + 1, store.first_sequence)
        selected = None
        if sequence < meta.resume_sequence:
            selected = backlog.select_last(
                config.filters, store, after=sequence - 1, resume_sequence=meta.resume_sequence
            )
    return Consumer(
        stream,
        config,
        created_ns=meta.created_ns,
        backlog=_backlog(stream, config, sequence, selected),
        ledger=ledger,
        files=files,
        resume_sequence=meta.resume_sequence,
    )


def _backlog(
    stream: Stream, config: ConsumerConfig, sequence: int, selected: LastPerSubject | None
) -> ConsumerBacklog:
    is_paced = config.replay_policy == "original"
    return ConsumerBacklog(
        stream,
        config.filters,
        sequence,
        selected,
        is_paced=is_paced,
        is_copied=config.is_private or config.ack_policy == "flow_control",
    )
