"""Made by `make proto` from proto/."""
