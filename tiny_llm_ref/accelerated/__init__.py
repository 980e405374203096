"""Faster parts of a model, and the races between them."""
