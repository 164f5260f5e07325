"""What the server keeps in a store: its keys, requests with an idempotency key, and documents."""
