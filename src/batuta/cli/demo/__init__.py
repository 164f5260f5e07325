"""The demo: a worker dies in the middle of an order, and another finishes it."""
