"""What runs on Batuta: the monitor of rate limits, and the workflows of keys and claims."""
