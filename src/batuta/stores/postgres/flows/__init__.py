"""Flows and events in PostgreSQL."""
