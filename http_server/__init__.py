"""The server's protocols over HTTP."""

VERSION = "0.3.2"
"""Of the project."""
