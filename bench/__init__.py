"""The benchmark: ours, a peer and the bare database in one run. `python -m bench`; see README.md beside this."""
