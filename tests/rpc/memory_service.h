// MemoryService: a test service whose handlers use memory that the caller lends (Use), and lend
// memory to the caller (Borrow) until the caller gives it back (Return). It lends to one caller at
// a time.

#ifndef VERBENA_TESTS_RPC_MEMORY_SERVICE_H_
#define VERBENA_TESTS_RPC_MEMORY_SERVICE_H_

#include <atomic>
#include <cstdint>

#include "tests/rpc/memory_testing.verbena.pb.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/server.h"

namespace verbena::internal {

class MemoryService final : public testing::Memories::Service {
 public:
  Task<absl::Status> Use(ServerContext& context, const testing::UseRequest& request,
                         testing::UseReply& reply) override;
  Task<absl::Status> Borrow(ServerContext& context, const testing::BorrowRequest& request,
                            testing::BorrowReply& reply) override;
  Task<absl::Status> Return(ServerContext&, const testing::ReturnRequest&,
                            testing::ReturnReply& reply) override;

  std::atomic<int> started{0};

 private:
  Buffer lent_;
  Loan loan_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_MEMORY_SERVICE_H_
