"""Code around sampling that no day asks for."""
