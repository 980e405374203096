"""What a model computes with: softmax, attention, rotary positions, norm, packed weights."""
