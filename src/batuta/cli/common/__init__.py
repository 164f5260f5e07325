"""What commands share: options, inputs, loading, output."""
