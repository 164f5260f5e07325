"""The native backend: deterministic loop, turns and replay, committer, worker, executor, lease."""
