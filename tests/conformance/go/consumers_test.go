package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Makes a stream with messages 0, 1, 2 and so on.
func makeFilledStream(t *testing.T, ctx context.Context, js jetstream.JetStream, count int) jetstream.Stream {
	t.Helper()
	stream := makeStream(t, ctx, js, jetstream.StreamConfig{})
	fill(t, ctx, js, numbers(count))
	return stream
}

func fill(t *testing.T, ctx context.Context, js jetstream.JetStream, texts []string) {
	t.Helper()
	for _, text := range texts {
		must(js.PublishAsync(t.Name()+".a", []byte(text)))(t)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		t.Fatal("not all were stored")
	}
}

func makeConsumer(
	t *testing.T, ctx context.Context, stream jetstream.Stream, more jetstream.ConsumerConfig,
) jetstream.Consumer {
	t.Helper()
	more.Durable = "worker"
	return must(stream.CreateConsumer(ctx, more))(t)
}

func texts(t *testing.T, batch jetstream.MessageBatch) (received []string) {
	t.Helper()
	for message := range batch.Messages() {
		received = append(received, string(message.Data()))
		check(t, message.Ack())
	}
	check(t, batch.Error())
	return received
}

func TestFetchTakesABatch(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	consumer := makeConsumer(t, ctx, makeFilledStream(t, ctx, js, 100), jetstream.ConsumerConfig{})
	equal(t, texts(t, must(consumer.Fetch(60))(t)), numbers(60))
	equal(t, texts(t, must(consumer.FetchNoWait(60))(t)), numbers(100)[60:])
	equal(t, len(texts(t, must(consumer.FetchNoWait(60))(t))), 0)
	late := must(consumer.Fetch(1, jetstream.FetchMaxWait(50*time.Millisecond)))(t)
	equal(t, len(texts(t, late)), 0)
	fill(t, ctx, js, []string{"last"})
	equal(t, string(must(consumer.Next(jetstream.FetchMaxWait(deadline)))(t).Data()), "last")
	fill(t, ctx, js, []string{"more"})
	equal(t, texts(t, must(consumer.FetchBytes(1000, jetstream.FetchMaxWait(time.Second)))(t)), []string{"more"})
}

func TestMessagesAreIterated(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	consumer := makeConsumer(t, ctx, makeFilledStream(t, ctx, js, 500), jetstream.ConsumerConfig{})
	messages := must(consumer.Messages(jetstream.PullMaxMessages(50)))(t)
	for _, want := range numbers(500) {
		message := must(messages.Next(jetstream.NextContext(ctx)))(t)
		equal(t, string(message.Data()), want)
		check(t, message.Ack())
	}
	messages.Drain()

	_, err := messages.Next()
	equal(t, errors.Is(err, jetstream.ErrMsgIteratorClosed), true)
}

func TestMessagesAreConsumed(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 500)
	consumer := makeConsumer(t, ctx, stream, jetstream.ConsumerConfig{})
	received := make(chan string, 1000)
	consuming := must(consumer.Consume(func(m jetstream.Msg) {
		check(t, m.DoubleAck(ctx))
		received <- string(m.Data())
	}, jetstream.PullMaxMessages(50)))(t)
	equal(t, take(t, received, 500), numbers(500))
	fill(t, ctx, js, numbers(1000)[500:])
	equal(t, take(t, received, 500), numbers(1000)[500:])
	consuming.Stop()

	info := must(consumer.Info(ctx))(t)
	equal(t, []uint64{info.AckFloor.Stream, info.NumPending}, []uint64{1000, 0})
	check(t, stream.DeleteConsumer(ctx, "worker"))
	_, err := stream.Consumer(ctx, "worker")
	equal(t, errors.Is(err, jetstream.ErrConsumerNotFound), true)
}

func TestAnOrderedConsumerIsMadeAgain(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 500)
	consumer := must(stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{}))(t)
	received := make(chan string, 1000)
	receive := func(m jetstream.Msg) { received <- string(m.Data()) }
	soon := []jetstream.PullConsumeOpt{
		jetstream.PullExpiry(2 * time.Second), jetstream.PullHeartbeat(500 * time.Millisecond),
	}
	consuming := must(consumer.Consume(receive, soon...))(t)
	equal(t, take(t, received, 500), numbers(500))
	deleted := consumer.CachedInfo().Name
	check(t, stream.DeleteConsumer(ctx, deleted))
	fill(t, ctx, js, numbers(1000)[500:])

	equal(t, take(t, received, 500), numbers(1000)[500:])
	equal(t, consumer.CachedInfo().Name != deleted, true)
	consuming.Stop()
}

func TestMessagesArePushed(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 500)
	config := jetstream.ConsumerConfig{
		Durable: "pushed", DeliverSubject: nats.NewInbox(), AckPolicy: jetstream.AckExplicitPolicy,
		FlowControl: true, IdleHeartbeat: time.Second,
	}
	consumer := must(stream.CreateOrUpdatePushConsumer(ctx, config))(t)
	received := make(chan string, 500)
	consuming := must(consumer.Consume(func(m jetstream.Msg) {
		received <- string(m.Data())
		check(t, m.Ack())
	}))(t)

	equal(t, take(t, received, 500), numbers(500))
	consuming.Stop()
}

func TestTheOlderInterfaceIsServed(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	makeFilledStream(t, ctx, js, 500)
	older := must(js.Conn().JetStream(nats.MaxWait(deadline)))(t)
	received := make(chan string, 500)
	receive := func(m *nats.Msg) {
		received <- string(m.Data)
	}
	subject := t.Name() + ".a"

	plain := must(older.Subscribe(subject, receive))(t)
	equal(t, take(t, received, 500), numbers(500))
	check(t, plain.Unsubscribe())
	ordered := must(older.Subscribe(subject, receive, nats.OrderedConsumer()))(t)
	equal(t, take(t, received, 500), numbers(500))
	check(t, ordered.Unsubscribe())
	acknowledge := func(m *nats.Msg) {
		check(t, m.AckSync(nats.Context(ctx)))
		receive(m)
	}
	for range 2 {
		must(older.QueueSubscribe(subject, "group", acknowledge, nats.ManualAck()))(t)
	}
	equal(t, len(take(t, received, 500)), 500)
	pulled := must(older.PullSubscribe(subject, "puller"))(t)
	equal(t, len(must(pulled.Fetch(500, nats.MaxWait(deadline)))(t)), 500)
	check(t, pulled.Unsubscribe())
}

func TestAPausedConsumerRests(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 1)
	consumer := makeConsumer(t, ctx, stream, jetstream.ConsumerConfig{})
	paused := must(stream.PauseConsumer(ctx, "worker", time.Now().Add(time.Hour)))(t)
	equal(t, paused.Paused, true)
	equal(t, len(texts(t, must(consumer.FetchNoWait(1))(t))), 0)
	equal(t, must(stream.ResumeConsumer(ctx, "worker"))(t).Paused, false)

	equal(t, texts(t, must(consumer.Fetch(1, jetstream.FetchMaxWait(deadline)))(t)), numbers(1))
}

func TestAConsumerStartsAgain(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeFilledStream(t, ctx, js, 5)
	consumer := makeConsumer(t, ctx, stream, jetstream.ConsumerConfig{})
	equal(t, texts(t, must(consumer.Fetch(5))(t)), numbers(5))
	equal(t, must(stream.ResetConsumerToSequence(ctx, "worker", 3))(t).ResetSeq, uint64(3))

	equal(t, texts(t, must(consumer.Fetch(3))(t)), numbers(5)[2:])
}
