"""`batuta flows`: flows in files and in the database."""
