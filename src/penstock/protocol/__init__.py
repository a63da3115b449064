"""The vocabulary of NATS as values: subjects, headers, times, transforms, error codes."""
