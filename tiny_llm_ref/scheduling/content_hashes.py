"""Hashes of prefixes that other programs compute from the same tokens: those of vLLM 0.29.

They are vLLM's with `--prefix-caching-hash-algo sha256_cbor`, as in `hash_block_tokens` and `init_none_hash`
of its vllm/v1/core/kv_cache_utils.py.
"""

from hashlib import sha256
from weakref import WeakKeyDictionary

from .block_hashes import Prefix
from .cache_salts import Salt

Item = None | int | str | bytes | tuple["Item", ...]
"""What `cbor` encodes."""


def cbor(item: Item) -> bytes:
    """Encode an item in the one form that RFC 8949 allows if all lengths are as short as possible.

    Args:
        item: None, an integer from 0, text, bytes, or a tuple of items.
    """
    if item is None:
        return b"\xf6"
    if isinstance(item, int):
        return cbor_head(0, item)
    if isinstance(item, bytes):
        return cbor_head(2, len(item)) + item
    if isinstance(item, str):
        return cbor_head(3, len(item.encode())) + item.encode()
    return cbor_head(4, len(item)) + b"".join([cbor(each) for each in item])


def cbor_head(kind: int, number: int) -> bytes:
    """Encode the kind of an item and its value or length: in one byte below 24, else in 1, 2, 4 or 8 more."""
    if number < 24:
        return bytes([kind << 5 | number])
    log_length = next(log for log in range(4) if number < 1 << (8 << log))
    return bytes([kind << 5 | 24 + log_length]) + number.to_bytes(1 << log_length, "big")


class ContentHashes:
    """Hashes of prefixes: of their parents' hash, their own tokens, and the salt if they begin with one.

    Each is computed once and kept as long as its prefix.

    Args:
        seed: what the hashes of first blocks begin with. Equal seeds give equal hashes, in any process.
    """

    def __init__(self, seed: str) -> None:
        self.root = sha256(cbor(seed)).digest()
        self._known: WeakKeyDictionary[Prefix, bytes] = WeakKeyDictionary()

    def of(self, prefix: Prefix) -> bytes:
        """Return the 32 bytes that stand for all tokens of a prefix."""
        unknown = list[Prefix]()
        each: Prefix | None = prefix
        while each is not None and each not in self._known:  # no recursion: prefixes may be long
            unknown.append(each)
            each = parent_and_salt(each)[0]
        for each in reversed(unknown):
            parent, salt = parent_and_salt(each)
            before = self.root if parent is None else self._known[parent]
            extra_keys = None if salt is None else (salt,)
            self._known[each] = sha256(cbor((before, each.token_ids, extra_keys))).digest()
        return self._known[prefix]


def parent_and_salt(prefix: Prefix) -> tuple[Prefix | None, str | None]:
    """The prefix before the last block, and the salt that the block begins with. Each may be None."""
    parent = prefix.parent
    return (None, parent.salt) if isinstance(parent, Salt) else (parent, None)


def short_hash(digest: bytes) -> int:
    """The last 64 bits of a hash, as vLLM's events show it."""
    return int.from_bytes(digest[-8:], "big")
