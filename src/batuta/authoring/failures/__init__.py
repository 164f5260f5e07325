"""Exceptions as values in the journal, and back."""
