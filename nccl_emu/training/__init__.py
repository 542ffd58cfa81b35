"""The training workload: model, data, optimizer, state."""
