"""One file for each thing that clients can ask for: what answers them, and the row of its path."""
