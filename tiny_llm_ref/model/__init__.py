"""The model: configuration, embedding, MLP, decoder, KV cache and loader."""
