"""What runs the kernels on a GPU, and more kernels; not asked for on any day."""
