"""Partners over HTTP: breakers and limits, and webhooks to them."""
