"""The engine: one step, and what runs it."""
