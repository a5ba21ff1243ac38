"""Keeps the tables and shows them: api, storage, viewports, live are the life of a change."""
