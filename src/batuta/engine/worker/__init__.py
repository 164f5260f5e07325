"""The worker: session, lease, poller, committer, timers, scheduler, pruner."""
