"""What an author touches: workflow, activity, retry policy, context functions, run handle, Backend protocol."""
