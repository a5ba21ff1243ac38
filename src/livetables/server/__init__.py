"""Keeps the tables and shows them: store, viewport, hub, protocol, session, flight, http are the life of a change."""
