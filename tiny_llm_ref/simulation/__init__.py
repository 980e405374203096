"""What a step costs, and the scheduler without a model."""
