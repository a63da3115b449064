"""JetStream on a client: publishing, consuming, key-value buckets."""
