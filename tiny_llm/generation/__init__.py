"""From logits to text: the sampler and the generation loop, one request at a time."""
