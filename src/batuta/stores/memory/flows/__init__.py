"""Flows and events in memory."""
