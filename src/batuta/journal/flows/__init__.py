"""Flows and events as the store knows them."""
