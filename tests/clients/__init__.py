"""The server with clients that others have made."""

import pytest

SAMPLED = pytest.mark.sampled(
    2, "http_server/", "scripts/run/", "tiny_llm_ref/server/", "tiny_llm_ref/engine/"
)
