"""Kafka through the Java clients of the driver: topics, the control topic, and what a look at them finds."""
