"""Commands for learners: test, hint, progress, watch, catch up, reset."""
