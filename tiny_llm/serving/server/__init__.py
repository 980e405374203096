"""Day 3.7: a server for clients that speak OpenAI's protocol."""
