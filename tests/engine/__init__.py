"""The engine as a whole, and what is given."""
