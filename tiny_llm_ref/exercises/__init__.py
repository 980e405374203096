"""What a day asks for and nothing else uses."""
