package conformance

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

func TestStreamsAreManaged(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeStream(t, ctx, js, jetstream.StreamConfig{Description: "first"})
	other := jetstream.StreamConfig{Name: t.Name(), Description: "second"}
	_, err := js.CreateStream(ctx, other)
	equal(t, errors.Is(err, jetstream.ErrStreamNameAlreadyInUse), true)
	_, err = js.Stream(ctx, "no-such-stream")
	equal(t, errors.Is(err, jetstream.ErrStreamNotFound), true)
	other.Subjects = []string{t.Name() + ".>", t.Name() + "_more"}
	equal(t, must(js.UpdateStream(ctx, other))(t).CachedInfo().Config.Description, "second")
	equal(t, must(js.StreamNameBySubject(ctx, t.Name()+"_more"))(t), t.Name())
	for _, subject := range []string{"a", "b", "a"} {
		must(js.Publish(ctx, t.Name()+"."+subject, []byte(subject)))(t)
	}

	equal(t, must(stream.GetMsg(ctx, 2))(t).Subject, t.Name()+".b")
	equal(t, must(stream.GetLastMsgForSubject(ctx, t.Name()+".a"))(t).Sequence, uint64(3))
	check(t, stream.DeleteMsg(ctx, 2))
	_, err = stream.GetMsg(ctx, 2)
	equal(t, errors.Is(err, jetstream.ErrMsgNotFound), true)
	info := must(stream.Info(ctx, jetstream.WithSubjectFilter(">"), jetstream.WithDeletedDetails(true)))(t)
	equal(t, info.State.Subjects, map[string]uint64{t.Name() + ".a": 2})
	equal(t, info.State.Deleted, []uint64{2})
	check(t, stream.Purge(ctx, jetstream.WithPurgeKeep(1)))
	equal(t, must(stream.Info(ctx))(t).State.Msgs, uint64(1))
	equal(t, must(js.AccountInfo(ctx))(t).Streams > 0, true)
}

func TestAsyncPublishesAreAcknowledged(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	stream := makeStream(t, ctx, js, jetstream.StreamConfig{})
	var futures []jetstream.PubAckFuture
	for _, text := range numbers(1000) {
		futures = append(futures, must(js.PublishAsync(t.Name()+".a", []byte(text)))(t))
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		t.Fatal("not all were acknowledged")
	}

	for number, future := range futures {
		equal(t, take(t, future.Ok(), 1)[0].Sequence, uint64(number+1))
	}
	equal(t, must(stream.Info(ctx))(t).State.Msgs, uint64(1000))
}

func TestAPublishMayAskForConditions(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	makeStream(t, ctx, js, jetstream.StreamConfig{})
	publish := func(options ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
		return js.Publish(ctx, t.Name()+".a", nil, options...)
	}
	equal(t, must(publish(jetstream.WithMsgID("one")))(t).Duplicate, false)
	equal(t, must(publish(jetstream.WithMsgID("one")))(t).Duplicate, true)
	must(publish(jetstream.WithExpectLastSequence(1), jetstream.WithExpectLastMsgID("one")))(t)
	refused := func(want jetstream.ErrorCode, options ...jetstream.PublishOpt) {
		t.Helper()
		_, err := publish(options...)
		var said *jetstream.APIError
		if !errors.As(err, &said) || said.ErrorCode != want {
			t.Fatalf("got %v, want %v", err, want)
		}
	}

	refused(jetstream.JSErrCodeStreamWrongLastSequence, jetstream.WithExpectLastSequence(1))
	refused(jetstream.JSErrCodeStreamWrongLastSequence, jetstream.WithExpectLastSequencePerSubject(1))
	refused(10070, jetstream.WithExpectLastMsgID("two"))
	refused(10060, jetstream.WithExpectStream("other"))
	_, err := js.Publish(context.Background(), "nobody.stores.this", nil, jetstream.WithRetryAttempts(0))
	equal(t, errors.Is(err, jetstream.ErrNoStreamResponse), true)
}
