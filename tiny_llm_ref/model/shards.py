"""What is split among ranks: layers of a checkpoint, and sizes of its config.json."""

SPLIT_LAYERS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "embed_tokens",
    "lm_head",
)
"""Layers whose outputs, or rows, are split."""
DIVIDED_SIZES = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")
"""Each rank computes its part of them."""
JOINED_SIZES = ("hidden_size", "vocab_size")
"""Each rank computes its part of them, and then gets all."""
EXCHANGES_PER_LAYER = 4
"""What attention, o_proj, the MLP and down_proj join."""
EXCHANGES_OF_ENDS = 2
"""The sum of an embedding, and the joined logits."""
