package conformance

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func TestWhoIsKnownIsHeard(t *testing.T) {
	connection := connect(t)
	inbox := nats.NewInbox()
	subscription := must(connection.SubscribeSync(inbox))(t)
	check(t, connection.Publish(inbox, []byte("hi")))

	equal(t, string(must(subscription.NextMsg(deadline))(t).Data), "hi")
}

func TestWhoIsUnknownIsRefused(t *testing.T) {
	if !*refuses {
		t.Skip("everybody is let in")
	}
	late := time.Now().Add(deadline)
	for {
		_, err := dial(nats.UserInfo("nobody", "guess"))
		if errors.Is(err, nats.ErrAuthorization) {
			return
		}
		// A server may hang up while the client still speaks; then it does not hear why.
		if err == nil || time.Now().After(late) {
			t.Fatalf("got %v", err)
		}
	}
}
