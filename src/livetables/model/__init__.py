"""The values that all processes share: tables and views, changes, control messages, errors, and their wire formats."""
