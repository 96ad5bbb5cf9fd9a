"""A real Kafka broker (KRaft) on free ports."""
