"""What the server needs besides the learner's parts: HTTP, validation, formats and the page."""
