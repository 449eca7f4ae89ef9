"""Where tensors come from and where they go: sources of checkpoints, and the output folder."""
