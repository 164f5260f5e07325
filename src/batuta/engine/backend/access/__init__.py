"""Who may ask, and for which namespace."""
