"""Functions that the code of activities and jobs calls."""
