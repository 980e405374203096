"""A check that every grouped-query attention makes."""


def heads_per_kv_head(H_q: int, H: int) -> int:
    """How many query heads share a key and value head.

    Args:
        H_q: number of query heads.
        H: number of key and value heads.

    Raises:
        ValueError: H_q is not a multiple of H.
    """
    if H_q % H != 0:
        raise ValueError(f"{H_q} query heads cannot share {H} key heads evenly: H_q must be a multiple of H")
    return H_q // H
