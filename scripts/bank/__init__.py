"""The banks of wrong and of right solutions: read, applied, and carried across changes of the reference."""
