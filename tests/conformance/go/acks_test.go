package conformance

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func next(t *testing.T, consumer jetstream.Consumer) jetstream.Msg {
	t.Helper()
	return must(consumer.Next(jetstream.FetchMaxWait(deadline)))(t)
}

// Says which message came, and the how many-th time.
func delivered(t *testing.T, message jetstream.Msg) [2]uint64 {
	t.Helper()
	metadata := must(message.Metadata())(t)
	return [2]uint64{metadata.Sequence.Stream, metadata.NumDelivered}
}

func ackPending(t *testing.T, ctx context.Context, consumer jetstream.Consumer) int {
	t.Helper()
	return must(consumer.Info(ctx))(t).NumAckPending
}

func TestANakBringsAMessageAgain(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 1)
	consumer := makeConsumer(t, ctx, stream, jetstream.ConsumerConfig{AckWait: time.Hour})
	check(t, next(t, consumer).Nak())
	again := next(t, consumer)
	equal(t, delivered(t, again), [2]uint64{1, 2})
	check(t, again.NakWithDelay(100*time.Millisecond))
	last := next(t, consumer)
	equal(t, delivered(t, last), [2]uint64{1, 3})
	check(t, last.DoubleAck(ctx))

	equal(t, ackPending(t, ctx, consumer), 0)
}

func TestATerminatedMessageStaysAway(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 2)
	advisories := must(js.Conn().SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED." + t.Name() + ".>"))(t)
	consumer := makeConsumer(t, ctx, stream, jetstream.ConsumerConfig{AckWait: time.Hour})
	check(t, next(t, consumer).TermWithReason("unreadable"))
	var said struct {
		Reason    string `json:"reason"`
		StreamSeq uint64 `json:"stream_seq"`
	}
	check(t, json.Unmarshal(must(advisories.NextMsg(deadline))(t).Data, &said))
	equal(t, []any{said.Reason, said.StreamSeq}, []any{"unreadable", uint64(1)})
	check(t, next(t, consumer).Term())
	must(advisories.NextMsg(deadline))(t)

	equal(t, ackPending(t, ctx, consumer), 0)
}

func TestWorkInProgressIsNotGivenAgain(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 2)
	consumer := makeConsumer(t, ctx, stream, jetstream.ConsumerConfig{AckWait: 2 * time.Second})
	slow, forgotten := next(t, consumer), next(t, consumer)
	equal(t, delivered(t, forgotten), [2]uint64{2, 1})
	working := time.NewTicker(100 * time.Millisecond)
	go func() {
		for range working.C {
			if slow.InProgress() != nil { // It is done.
				working.Stop()
				return
			}
		}
	}()

	again := next(t, consumer)
	equal(t, delivered(t, again), [2]uint64{2, 2})
	check(t, again.DoubleAck(ctx))
	check(t, slow.DoubleAck(ctx))
	equal(t, ackPending(t, ctx, consumer), 0)
}
