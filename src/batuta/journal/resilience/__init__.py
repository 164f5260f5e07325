"""What stores keep for the room `resilience`. Values, no I/O."""
