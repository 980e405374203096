"""Several processes that compute the steps of one engine together."""
