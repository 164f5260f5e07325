"""The functions that workflow code calls."""
