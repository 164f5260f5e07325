"""Rules and tools that every store follows."""
