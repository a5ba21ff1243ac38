"""The life of a record: source, parse, match, plan, query."""
