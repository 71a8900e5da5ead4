"""Kafka Connect and the Debezium connector on it."""
