"""What the server keeps in this store: its keys, requests with an idempotency key, and documents."""
