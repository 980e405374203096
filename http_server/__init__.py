"""The server's protocols over HTTP."""
