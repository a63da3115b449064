package conformance

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestOverflowGoesToWhoWaitsForIt(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 10)
	consumer := makeConsumer(t, ctx, stream, jetstream.ConsumerConfig{
		PriorityPolicy: jetstream.PriorityPolicyOverflow, PriorityGroups: []string{"workers"},
	})
	group := jetstream.FetchPriorityGroup("workers")
	patient := must(consumer.Fetch(1, group, jetstream.FetchMinPending(100), jetstream.FetchMaxWait(time.Second)))(t)
	equal(t, len(texts(t, patient)), 0)

	eager := must(consumer.Fetch(10, group, jetstream.FetchMinPending(10), jetstream.FetchMaxWait(deadline)))(t)
	equal(t, string((<-eager.Messages()).Data()), "0")
}

func TestOneClientIsPinned(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 10)
	makeConsumer(t, ctx, stream, jetstream.ConsumerConfig{
		PriorityPolicy: jetstream.PriorityPolicyPinned, PriorityGroups: []string{"workers"}, PinnedTTL: time.Hour,
	})
	received := make(chan string, 20)
	consume := func(client string) jetstream.ConsumeContext {
		consumer := must(stream.Consumer(ctx, "worker"))(t)
		return must(consumer.Consume(func(m jetstream.Msg) {
			check(t, m.DoubleAck(ctx))
			received <- client
		}, jetstream.PullPriorityGroup("workers")))(t)
	}
	first := consume("first")
	take(t, received, 10)
	second := consume("second")
	fill(t, ctx, js, numbers(5))
	equal(t, take(t, received, 5), []string{"first", "first", "first", "first", "first"})
	first.Stop()
	<-first.Closed()
	check(t, stream.UnpinConsumer(ctx, "worker", "workers"))
	fill(t, ctx, js, numbers(1))

	equal(t, take(t, received, 1), []string{"second"})
	second.Stop()
}
