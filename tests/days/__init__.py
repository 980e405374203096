"""The tasks of the course, a file per day."""
