"""Exact Gram matrices: their messages, sums and kernels, and recommending by them."""
