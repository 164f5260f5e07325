"""Records of the server: API keys, requests with an idempotency key, documents."""
