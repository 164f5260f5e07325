"""Kill, stop and starve workers and databases; a ledger outside the system tells whether anything was lost."""
