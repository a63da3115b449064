"""The JetStream API: requests in, answers out."""
