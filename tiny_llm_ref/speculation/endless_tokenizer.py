"""A tokenizer for measurements."""


class EndlessTokenizer:
    """A tokenizer for prompts that are token ids already, and whose answers never end."""

    bos_token = None
    eos_token_ids: set[int] = set()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Not asked for: every prompt here is made of ids."""
        raise ValueError("give token ids, not text")

    def decode(self, token_ids: list[int]) -> str:
        """Return no text: it is never read."""
        return ""
