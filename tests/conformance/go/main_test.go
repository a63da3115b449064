// What nats.go does with a server. Build it with `go test -c`, and tell it by flags where the
// server is and who we are: `conformance.test -url nats://localhost:4222 -user ann -password secret`.
package conformance

import (
	"context"
	"flag"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How long a test waits for what must happen before it says that it did not.
const deadline = time.Minute

var (
	url      = flag.String("url", nats.DefaultURL, "where the server is")
	ca       = flag.String("ca", "", "file with the authority of the server's certificate")
	token    = flag.String("token", "", "token to connect with")
	user     = flag.String("user", "", "user to connect as")
	password = flag.String("password", "", "password of the user")
	seed     = flag.String("nkeys_seed", "", "file with the seed of the user's nkey")
	compress = flag.Bool("compress", false, "compress what goes over WebSocket")
	creds    = flag.String("user_credentials", "", "file with the user's token and seed")
	cert     = flag.String("cert", "", "file with the user's certificate")
	key      = flag.String("key", "", "file with the key of the certificate")
	refuses  = flag.Bool("refuses", false, "whether the server lets in only whom it knows")
)

// Says who we are, as the flags have it.
func whoWeAre(t *testing.T) (options []nats.Option) {
	t.Helper()
	if *token != "" {
		options = append(options, nats.Token(*token))
	}
	if *user != "" {
		options = append(options, nats.UserInfo(*user, *password))
	}
	if *seed != "" {
		options = append(options, must(nats.NkeyOptionFromSeed(*seed))(t))
	}
	if *creds != "" {
		options = append(options, nats.UserCredentials(*creds))
	}
	return options
}

func dial(options ...nats.Option) (*nats.Conn, error) {
	options = append(options, nats.Timeout(deadline), nats.Compression(*compress))
	if *ca != "" {
		options = append(options, nats.RootCAs(*ca))
	}
	if *cert != "" {
		options = append(options, nats.ClientCert(*cert, *key))
	}
	return nats.Connect(*url, options...)
}

func connect(t *testing.T, options ...nats.Option) *nats.Conn {
	t.Helper()
	connection := must(dial(append(options, whoWeAre(t)...)...))(t)
	t.Cleanup(connection.Close)
	return connection
}

func withJetStream(t *testing.T) (jetstream.JetStream, context.Context) {
	t.Helper()
	js := must(jetstream.New(connect(t), jetstream.WithDefaultTimeout(deadline)))(t)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return js, ctx
}

// Makes a stream that is named as the test, and is gone after it.
func makeStream(
	t *testing.T, ctx context.Context, js jetstream.JetStream, more jetstream.StreamConfig,
) jetstream.Stream {
	t.Helper()
	more.Name, more.Subjects = t.Name(), []string{t.Name() + ".>"}
	stream := must(js.CreateStream(ctx, more))(t)
	t.Cleanup(func() { check(t, js.DeleteStream(context.Background(), t.Name())) })
	return stream
}

// Fails the test unless there is no error; otherwise hands on the value: `must(call())(t)`.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// Takes as many values as there must be.
func take[T any](t *testing.T, values <-chan T, count int) (taken []T) {
	t.Helper()
	late := time.After(deadline)
	for range count {
		select {
		case value := <-values:
			taken = append(taken, value)
		case <-late:
			t.Fatalf("got %d of %d: %v", len(taken), count, taken)
		}
	}
	return taken
}
