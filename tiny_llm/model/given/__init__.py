"""Given code around the model: you don't write it on any day."""
