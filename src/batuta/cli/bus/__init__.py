"""`batuta bus`."""
