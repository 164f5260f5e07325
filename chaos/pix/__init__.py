"""pixdict as processes: killed in turn, and without its directory, while customers ask for keys."""
