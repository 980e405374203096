"""The server's protocols over HTTP."""

VERSION = "0.3.4"
"""Of the project."""
