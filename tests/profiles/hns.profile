# A device like a Kunpeng's (hns_roce of HIP08): all features that links use, and 32 bytes of inline
# data.
max_inline_bytes = 32
max_qp_wr = 32768
max_srq_wr = 32768
