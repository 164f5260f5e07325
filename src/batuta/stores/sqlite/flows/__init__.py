"""Flows and events in SQLite."""
