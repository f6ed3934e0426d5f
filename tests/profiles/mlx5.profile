# A device like a ConnectX (mlx5): it has all features that links use, in its own sizes. The provider
# counts inline data against the size of a work request: with four SGEs about 500 bytes fit.
max_inline_bytes = 512
max_qp_wr = 32768
max_cqe = 4194303
max_srq_wr = 32767
