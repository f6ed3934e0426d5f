// UringPipe: the functions of a TcpPipe over a UringSocket, which outlives it. One thread.

#ifndef VERBENA_BENCHMARKS_FLOOR_URING_PIPE_H_
#define VERBENA_BENCHMARKS_FLOOR_URING_PIPE_H_

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "benchmarks/floor/uring_socket.h"

namespace verbena::benchmarks::internal {

class UringPipe {
 public:
  explicit UringPipe(UringSocket& socket) : socket_(socket) {}
  UringPipe(const UringPipe&) = delete;
  UringPipe& operator=(const UringPipe&) = delete;
  // The kernel no longer reads what is going out.
  ~UringPipe() { socket_.Stop(); }

  // Copies bytes behind those that wait for Flush().
  void Append(const void* data, std::size_t bytes);
  // Sends what waits, if nothing else is on its way.
  absl::Status Flush();

  // Takes the next provided buffer that bytes came into. They stay there unless they begin with the
  // rest of a message.
  absl::Status Receive();
  // The bytes that came and were not dropped.
  const char* data() const { return in_.data(); }
  std::size_t received() const { return in_.size(); }
  void Drop(std::size_t bytes) { in_ = in_.subspan(bytes); }

 private:
  UringSocket& socket_;
  std::vector<char> waiting_;
  std::vector<char> going_;
  std::size_t gone_ = 0;      // of going_
  std::vector<char> rest_;    // of a message whose end has not come
  std::span<const char> in_;  // in rest_, or in a provided buffer
  bool in_is_rest_ = false;
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_URING_PIPE_H_
