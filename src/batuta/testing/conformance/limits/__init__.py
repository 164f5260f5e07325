"""Queues, fairness, rates, quotas and schedules."""
