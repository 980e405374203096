"""Commands for those who write the course."""
