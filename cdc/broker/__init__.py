"""Kafka: topics, offsets, and a look at what passes through them."""
