"""What the model is checked against; not asked for on any day."""
