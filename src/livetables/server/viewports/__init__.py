"""Windows of sorted, filtered tables: in SQL, and kept current in memory. Pure."""
