"""Commits, fences, leases and hints."""
