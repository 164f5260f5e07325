"""What clients call: starts, handles, schedules, queues, dead letters."""
