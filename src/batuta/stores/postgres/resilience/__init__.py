"""Records of `resilience` in this store."""
