"""Live, joined, hot-swappable tables from Kafka through Spark."""
