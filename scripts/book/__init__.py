"""The book: words and fences become Markdown, what can go stale is refused, mdBook makes pages."""
