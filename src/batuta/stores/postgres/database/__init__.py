"""The server: address, connections, rows, errors, schema."""
