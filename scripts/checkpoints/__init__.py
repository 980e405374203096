"""Checkpoints: fetched, read, and compared with mlx-lm."""
