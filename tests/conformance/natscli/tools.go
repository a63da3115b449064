//go:build tools

// The `nats` command line tool, as a dependency: `go build github.com/nats-io/natscli/nats`.
package natscli

import _ "github.com/nats-io/natscli/nats"
