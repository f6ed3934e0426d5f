# A device like a BCM57500 (bnxt_re): few SGEs, little inline data, queues of 65,535 entries, and no
# atomic operations unless the host bridge completes those of PCI Express.
atomics = false
max_inline_bytes = 96
max_sge = 6
max_qp_wr = 65535
max_cqe = 65535
max_srq_wr = 65535
