"""The bus in SQLite."""
