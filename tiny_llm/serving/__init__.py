"""The engine: a scheduler that sees only numbers, a runner that calls the model, and the loop around both."""
