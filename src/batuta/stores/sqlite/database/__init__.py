"""The file: connections, rows, locks, schema, backup."""
