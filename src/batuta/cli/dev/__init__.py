"""`batuta dev`."""
