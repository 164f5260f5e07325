"""The life of a run, from start to close."""
