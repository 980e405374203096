"""What machines other than this one would do."""
