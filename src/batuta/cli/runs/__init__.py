"""`batuta runs`."""
