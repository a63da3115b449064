package conformance

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
)

func numbers(count int) (texts []string) {
	for number := range count {
		texts = append(texts, strconv.Itoa(number))
	}
	return texts
}

func TestMessagesArriveInOrder(t *testing.T) {
	t.Parallel()
	publisher, subscriber := connect(t), connect(t)
	received := make(chan string, 2000)
	must(subscriber.Subscribe("order.*", func(m *nats.Msg) { received <- string(m.Data) }))(t)
	check(t, subscriber.Flush())
	for _, text := range numbers(2000) {
		check(t, publisher.Publish("order.a", []byte(text)))
	}

	equal(t, take(t, received, 2000), numbers(2000))
}

func TestAQueueGroupSharesMessages(t *testing.T) {
	t.Parallel()
	first, second := connect(t), connect(t)
	received := make(chan [2]string, 600)
	for member, connection := range []*nats.Conn{first, first, second} {
		must(connection.QueueSubscribe("queue", "workers", func(m *nats.Msg) {
			received <- [2]string{strconv.Itoa(member), string(m.Data)}
		}))(t)
	}
	check(t, first.Flush())
	check(t, second.Flush())
	for _, text := range numbers(600) {
		check(t, first.Publish("queue", []byte(text)))
	}

	shares, got := map[string]int{}, []int{}
	for _, pair := range take(t, received, 600) {
		shares[pair[0]]++
		got = append(got, must(strconv.Atoi(pair[1]))(t))
	}
	slices.Sort(got)
	equal(t, len(slices.Compact(got)), 600)
	equal(t, len(shares), 3)
}

func TestRequestsAreAnswered(t *testing.T) {
	t.Parallel()
	client, service := connect(t), connect(t)
	must(service.Subscribe("double", func(m *nats.Msg) {
		check(t, m.Respond(append(m.Data, m.Data...)))
	}))(t)
	check(t, service.Flush())
	for _, text := range numbers(200) {
		answer := must(client.Request("double", []byte(text), deadline))(t)
		equal(t, string(answer.Data), text+text)
	}

	if _, err := client.Request("nobody.there", nil, deadline); !errors.Is(err, nats.ErrNoResponders) {
		t.Fatalf("got %v", err)
	}
}

func TestHeadersArriveAsTheyWereSent(t *testing.T) {
	t.Parallel()
	connection := connect(t)
	subscription := must(connection.SubscribeSync("headers"))(t)
	sent := &nats.Msg{Subject: "headers", Reply: "answer.here", Data: []byte("body")}
	sent.Header = nats.Header{"First": {"one", "two"}, "second": {"zwei"}}
	check(t, connection.PublishMsg(sent))

	got := must(subscription.NextMsg(deadline))(t)
	equal(t, got.Header, sent.Header)
	equal(t, []string{got.Reply, string(got.Data)}, []string{"answer.here", "body"})
}

func TestASubscriptionEndsAfterItsLastMessage(t *testing.T) {
	t.Parallel()
	connection := connect(t)
	subscription := must(connection.SubscribeSync("few"))(t)
	check(t, subscription.AutoUnsubscribe(3))
	for range 5 {
		check(t, connection.Publish("few", nil))
	}
	for range 3 {
		must(subscription.NextMsg(deadline))(t)
	}

	if _, err := subscription.NextMsg(deadline); !errors.Is(err, nats.ErrMaxMessages) {
		t.Fatalf("got %v", err)
	}
	_, err := connection.Request("few", nil, deadline)
	equal(t, errors.Is(err, nats.ErrNoResponders), true)
}

func TestDrainHandlesWhatHasArrived(t *testing.T) {
	t.Parallel()
	publisher := connect(t)
	received, closed := make(chan string, 1000), make(chan bool, 1)
	subscriber := connect(t, nats.ClosedHandler(func(*nats.Conn) { closed <- true }))
	must(subscriber.Subscribe("drain", func(m *nats.Msg) {
		received <- string(m.Data)
		check(t, m.Respond(m.Data))
	}))(t)
	check(t, subscriber.Flush())
	answers := must(publisher.SubscribeSync("drained"))(t)
	for _, text := range numbers(1000) {
		check(t, publisher.PublishRequest("drain", "drained", []byte(text)))
	}
	check(t, publisher.Flush())
	check(t, subscriber.Flush())
	check(t, subscriber.Drain())

	take(t, closed, 1)
	equal(t, take(t, received, 1000), numbers(1000))
	for _, text := range numbers(1000) {
		equal(t, string(must(answers.NextMsg(deadline))(t).Data), text)
	}
	_, err := publisher.Request("drain", nil, deadline)
	equal(t, errors.Is(err, nats.ErrNoResponders), true)
}

func TestSubscriptionsOutliveAConnection(t *testing.T) {
	t.Parallel()
	again := make(chan bool, 1)
	connection := connect(t, nats.ReconnectHandler(func(*nats.Conn) { again <- true }))
	subscription := must(connection.SubscribeSync("outlive"))(t)
	check(t, connection.ForceReconnect())
	take(t, again, 1)
	check(t, connection.Publish("outlive", []byte("hi")))

	equal(t, string(must(subscription.NextMsg(deadline))(t).Data), "hi")
}
