"""What a client does with flows: `client.flows`."""
