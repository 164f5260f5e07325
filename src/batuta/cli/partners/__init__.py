"""`batuta partners`."""
