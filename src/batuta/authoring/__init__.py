"""The authoring API: workflow, activity, retry policy, context functions, run handle, Backend protocol."""
