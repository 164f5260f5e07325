"""What operators do: audit, bulk operations, forks, dead letters, retention."""
