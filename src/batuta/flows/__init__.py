"""Flows: workflows as JSON documents, for teams that do not write Python."""
