"""Flows for clients: `client.flows`."""
