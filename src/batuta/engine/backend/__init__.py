"""The native backend, which clients call."""
