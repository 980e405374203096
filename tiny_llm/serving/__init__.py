"""The engine: a scheduler that knows numbers alone, a runner that knows the model, and what joins the two."""
