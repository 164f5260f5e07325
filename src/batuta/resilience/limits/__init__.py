"""Limits towards partners."""
