"""The server's protocols over HTTP."""

VERSION = "0.3.3"
"""Of the project."""
