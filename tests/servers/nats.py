"""A real NATS server with JetStream on free ports."""
