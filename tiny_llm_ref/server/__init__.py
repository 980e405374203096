"""The engine's thread and what protects it. Nothing of HTTP."""
