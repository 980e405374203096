"""Commands that let the engine serve, and what records a run."""
