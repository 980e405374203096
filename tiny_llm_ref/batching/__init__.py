"""Continuous batching: requests, their chunks, and the generator that steps them."""
