"""The tables: frames applied in memory, then stored in DuckDB, and read with SQL."""
