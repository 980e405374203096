"""The bank of wrong solutions: read, applied, and carried across changes of the reference."""
