package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Makes another stream, named as the test and a suffix, and reads its first messages.
func derive(
	t *testing.T, ctx context.Context, js jetstream.JetStream, suffix string, config jetstream.StreamConfig, count int,
) (subjects []string) {
	t.Helper()
	config.Name = t.Name() + suffix
	stream := must(js.CreateStream(ctx, config))(t)
	t.Cleanup(func() { check(t, js.DeleteStream(context.Background(), config.Name)) })
	consumer := must(stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{}))(t)
	for message := range must(consumer.Fetch(count, jetstream.FetchMaxWait(deadline)))(t).Messages() {
		subjects = append(subjects, strings.TrimPrefix(message.Subject(), t.Name()))
	}
	return subjects
}

func TestStreamsFollowStreams(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	name := t.Name()
	makeStream(t, ctx, js, jetstream.StreamConfig{})
	for _, subject := range []string{".a", ".b", ".c"} {
		must(js.Publish(ctx, name+subject, nil))(t)
	}
	mirror := jetstream.StreamConfig{Mirror: &jetstream.StreamSource{Name: name}}
	part := &jetstream.StreamSource{Name: name, FilterSubject: name + ".b"}
	moved := &jetstream.StreamSource{Name: name, SubjectTransforms: []jetstream.SubjectTransformConfig{
		{Source: name + ".*", Destination: "moved.{{wildcard(1)}}"},
	}}

	equal(t, derive(t, ctx, js, "_mirror", mirror, 3), []string{".a", ".b", ".c"})
	sourced := jetstream.StreamConfig{Sources: []*jetstream.StreamSource{part}}
	equal(t, derive(t, ctx, js, "_part", sourced, 1), []string{".b"})
	sourced.Sources = []*jetstream.StreamSource{moved}
	equal(t, derive(t, ctx, js, "_moved", sourced, 3), []string{"moved.a", "moved.b", "moved.c"})
}

func TestWhatIsStoredIsTransformedAndPublishedAgain(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	name := t.Name()
	heard := must(js.Conn().SubscribeSync(name + "_again.>"))(t)
	stream := makeStream(t, ctx, js, jetstream.StreamConfig{
		SubjectTransform: &jetstream.SubjectTransformConfig{Source: name + ".in.*", Destination: name + ".out.{{wildcard(1)}}"},
		RePublish:        &jetstream.RePublish{Source: name + ".out.>", Destination: name + "_again.>"},
	})
	must(js.Publish(ctx, name+".in.x", []byte("hi")))(t)

	equal(t, must(stream.GetMsg(ctx, 1))(t).Subject, name+".out.x")
	again := must(heard.NextMsg(deadline))(t)
	equal(t, []string{again.Subject, again.Header.Get("Nats-Sequence")}, []string{name + "_again.x", "1"})
}

func TestAMessageMayBeScheduledAndExpire(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	config := jetstream.StreamConfig{AllowMsgSchedules: true, AllowMsgTTL: true}
	stream := makeStream(t, ctx, js, config)
	must(js.Publish(ctx, t.Name()+".plan", []byte("later"),
		jetstream.WithScheduleAt(time.Now().Add(time.Second)), jetstream.WithScheduleTarget(t.Name()+".target")))(t)
	must(js.Publish(ctx, t.Name()+".brief", nil, jetstream.WithMsgTTL(time.Second)))(t)

	filter := jetstream.ConsumerConfig{FilterSubject: t.Name() + ".target"}
	equal(t, string(next(t, makeConsumer(t, ctx, stream, filter)).Data()), "later")
	for {
		_, err := stream.GetLastMsgForSubject(ctx, t.Name()+".brief")
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return
		}
		check(t, err)
	}
}
