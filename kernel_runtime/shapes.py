"""The shape check of every grouped-query attention."""


def heads_per_kv_head(H_q: int, H: int) -> int:
    """Number of query heads that share each KV head.

    Args:
        H_q: number of query heads.
        H: number of KV heads.

    Raises:
        ValueError: H_q is not a multiple of H.
    """
    if H_q % H != 0:
        raise ValueError(f"{H_q} query heads cannot share {H} key heads evenly: H_q must be a multiple of H")
    return H_q // H
