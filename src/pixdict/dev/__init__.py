"""All of pixdict in one process, for a machine of your own."""
