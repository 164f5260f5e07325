"""Messages of the bus, as stores keep them."""
