// The floors over TCP by themselves, as rows of a benchmark: by system calls of sockets, and in
// each way through io_uring. They tell whether io_uring would be faster for the soft device's TCP
// wire.
//
// Slices of all ways alternate between two processes on two cores. A row's floor is system calls. A
// way that this machine forbids is left out, and the output says why.
//
// All functions fork, so call them while this process has no threads. They leave the calling
// thread on the client's core. They fail as their floors and ServerProcess do.

#ifndef VERBENA_BENCHMARKS_FLOOR_TCP_TABLE_H_
#define VERBENA_BENCHMARKS_FLOOR_TCP_TABLE_H_

#include <vector>

#include "absl/status/status.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"

namespace verbena::benchmarks {

// Messages there and back: rows `tcp_socket` and `tcp_uring` for each size and number outstanding.
absl::Status ReportTcpMessages(const TwoCores& cores, const Options& options, Report& report);

// The same on 16 and on 64 connections, with one message on each at a time: rows `fan_socket` and
// `fan_uring` for each size of up to 4096 bytes, whose number outstanding is that of connections.
absl::Status ReportTcpFan(const TwoCores& cores, const Options& options, Report& report);

// Payloads: rows `tcp_socket_read`, `tcp_uring_read` (RECV to the place), `tcp_uring_read_multi`
// (multishot RECV, then a copy) and `tcp_uring_read_zc` (SEND_ZC), and the same with `_write`.
absl::Status ReportTcpPayloads(const TwoCores& cores, const Options& options,
                               const std::vector<CopyDirection>& directions, Report& report);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_FLOOR_TCP_TABLE_H_
