"""The tape: entries, run states and the Store protocol. Values, no I/O."""
