"""The fastest parts that a model can be built from here; not asked for on any day."""
