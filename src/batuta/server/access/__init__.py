"""Who may ask: keys, sessions, and the access check of every route."""
