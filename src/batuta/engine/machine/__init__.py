"""Workflow code of one run on a deterministic loop: turns, commands, replay. No store, no worker."""
