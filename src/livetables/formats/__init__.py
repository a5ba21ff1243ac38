"""Record formats: how a record's value becomes a row, or why it does not."""
