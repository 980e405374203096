"""From logits to text: the sampler and the loop, one request at a time."""
