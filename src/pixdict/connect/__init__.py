"""What runs on Batuta: the monitor of rate limits."""
