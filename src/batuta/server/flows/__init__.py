"""Flows over HTTP: workflows, events, and runs of flows, under /api beside /api/v1."""
