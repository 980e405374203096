"""Given types and code around the scheduler and the engine: you don't write them on any day."""
