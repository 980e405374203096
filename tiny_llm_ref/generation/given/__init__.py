"""Given code around sampling: you don't write it on any day."""
