"""JetStream: streams, consumers and their storage. No I/O except in `disk`."""
