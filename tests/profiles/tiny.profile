# No device in particular: nothing optional, and each limit about as small as links can live with.
srq = false
send_with_immediate = false
write_with_immediate = false
atomics = false
memory_windows = false
max_inline_bytes = 0
max_sge = 1
max_qp = 512
max_qp_wr = 128
max_cqe = 8192
max_qp_rd_atom = 1
max_qp_init_rd_atom = 1
mtu = 256
