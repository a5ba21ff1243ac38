"""What everything here speaks of: tables and views, changes, control messages, errors, and their forms on a wire."""
