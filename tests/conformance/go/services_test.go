package conformance

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

func TestAServiceIsFoundAskedAndStopped(t *testing.T) {
	t.Parallel()
	client, connection := connect(t), connect(t)
	service := must(micro.AddService(connection, micro.Config{Name: "Words", Version: "1.2.3"}))(t)
	group := service.AddGroup("words")
	check(t, group.AddEndpoint("echo", micro.HandlerFunc(func(r micro.Request) {
		check(t, r.Respond(r.Data()))
	})))
	check(t, group.AddEndpoint("fail", micro.HandlerFunc(func(r micro.Request) {
		check(t, r.Error("418", "a teapot", nil))
	})))
	check(t, connection.Flush())

	equal(t, string(must(client.Request("words.echo", []byte("hi"), deadline))(t).Data), "hi")
	failed := must(client.Request("words.fail", nil, deadline))(t)
	equal(t, failed.Header.Get(micro.ErrorHeader), "a teapot")
	equal(t, failed.Header.Get(micro.ErrorCodeHeader), "418")

	equal(t, about[micro.Ping](t, client, "$SRV.PING.Words").Version, "1.2.3")
	equal(t, len(about[micro.Info](t, client, "$SRV.INFO.Words").Endpoints), 2)
	stats := about[micro.Stats](t, client, "$SRV.STATS.Words."+service.Info().ID)
	equal(t, []int{stats.Endpoints[0].NumRequests, stats.Endpoints[1].NumErrors}, []int{1, 1})

	check(t, service.Stop())
	check(t, connection.Flush())
	_, err := client.Request("words.echo", nil, deadline)
	equal(t, err, nats.ErrNoResponders)
}

func about[T any](t *testing.T, client *nats.Conn, subject string) (said T) {
	t.Helper()
	answer := must(client.Request(subject, nil, deadline))(t)
	check(t, json.Unmarshal(answer.Data, &said))
	return said
}
