"""The history of a run: steps, timeline, differences. Values, no I/O."""
