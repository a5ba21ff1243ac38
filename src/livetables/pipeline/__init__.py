"""The life of a row: Kafka record, typed row, joined change, sink."""
