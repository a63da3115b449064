"""NATS keys, and the tokens they sign."""
