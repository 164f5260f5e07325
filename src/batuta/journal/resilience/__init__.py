"""Records for `resilience`. No I/O."""
