# A device like Alibaba's elastic RDMA (erdma): iWARP, so links use no immediates there; in its first
# versions no shared receive queues and no atomic operations. Its provider makes no memory windows.
srq = false
send_with_immediate = false
write_with_immediate = false
atomics = false
memory_windows = false
max_inline_bytes = 96
max_sge = 6
max_qp_wr = 8192
