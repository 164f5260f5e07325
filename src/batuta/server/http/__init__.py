"""The way of a request through the server: routes, decoding, problems, headers."""
