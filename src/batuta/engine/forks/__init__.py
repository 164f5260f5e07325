"""Runs made from other runs: retry, reset, fork."""
