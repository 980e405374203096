"""What rank 0 needs around its engine, and what starts and stops the others."""
