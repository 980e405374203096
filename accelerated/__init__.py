"""Faster parts of a model, and the races between them."""

from kernel_runtime import native  # noqa: F401  before MLX is loaded
