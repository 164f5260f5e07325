"""What the room `resilience` keeps in this store."""
