"""A run that a worker owns: inputs, entries to commit, effects, eviction."""
