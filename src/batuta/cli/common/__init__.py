"""Shared parts of commands: options, inputs, loading, output."""
