"""The bus on NATS."""
