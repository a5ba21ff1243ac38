"""Further processes that serve WebSockets."""
