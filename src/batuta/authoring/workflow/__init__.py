"""What workflow code calls."""
