"""Records of the server in this store: API keys, requests with an idempotency key, documents."""
