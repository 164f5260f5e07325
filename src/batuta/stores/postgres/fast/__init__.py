"""Shortcuts for speed. Each does what the plain path does, for a common case."""
