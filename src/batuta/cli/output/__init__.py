"""Tables and timelines on a terminal. Imports rich, so commands import these modules late."""
