"""Attempts of activities: async, in threads, in processes, in transactions, completed from outside."""
