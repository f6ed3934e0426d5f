# A device like Intel's X722 (i40iw): iWARP, so links use no immediates there; no shared receive queues,
# atomic operations or memory windows. What is posted in ERR does not complete.
srq = false
send_with_immediate = false
write_with_immediate = false
atomics = false
memory_windows = false
flushes_in_error = false
max_inline_bytes = 48
max_sge = 3
max_qp_wr = 2048
max_cqe = 1048575
