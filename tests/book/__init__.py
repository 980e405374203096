"""The book and its pages."""
