"""What scheduler, engine and their parts say to each other; not asked for on any day."""
