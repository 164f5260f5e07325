"""The bus in PostgreSQL."""
