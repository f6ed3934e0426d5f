# A device like Intel's E810 (irdma before its third generation): no shared receive queues, and so
# neither of their events; no atomic operations; 13 SGEs and 101 bytes of inline data.
srq = false
atomics = false
max_inline_bytes = 101
max_sge = 13
max_qp_wr = 4063
max_cqe = 1048575
