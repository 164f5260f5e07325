"""Other engines, each measured in an environment of its own through the interface of `bench.child`."""
