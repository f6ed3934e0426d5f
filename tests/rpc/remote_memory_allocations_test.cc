// Operations on memory that is lent allocate nothing in steady state.

#include "tests/rpc/memory_fixture.h"
#include "tests/transport/coro/counted_new.h"

namespace verbena::internal {
namespace {

class RemoteMemoryAllocationsTest : public MemoryFixture {};

TEST_F(RemoteMemoryAllocationsTest, OperationsAllocateNothingInSteadyState) {
  StartBothWith({});
  auto run = [this]() -> Task<absl::Status> {
    testing::BorrowRequest request;
    request.set_bytes(65536);
    request.set_access(static_cast<uint32_t>(kAnyAccess));
    VERBENA_CO_ASSIGN_OR_RETURN(testing::BorrowReply reply, co_await stub_->Borrow(request));
    VERBENA_CO_ASSIGN_OR_RETURN(RemoteMemory memory, channel_->Remote(reply.memory()));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(65536));
    size_t before = 0;
    constexpr int kWarmUp = 200;
    for (int i = 0; i < kWarmUp + 1000; ++i) {
      if (i == kWarmUp) before = CountedNews();
      VERBENA_CO_RETURN_IF_ERROR(co_await memory.Read(0, buffer.view()));
      VERBENA_CO_RETURN_IF_ERROR(co_await memory.Write(0, buffer.view()));
      VERBENA_CO_ASSIGN_OR_RETURN(uint64_t was, co_await memory.FetchAdd(0, 1));
      VERBENA_CO_ASSIGN_OR_RETURN(uint64_t now, co_await memory.CompareAndSwap(0, was + 1, was));
      EXPECT_EQ(now, was + 1);
    }
    // Other threads of the process do little, but something: more on a busy machine.
    EXPECT_LT(CountedNews() - before, 400u) << "of 4000 operations";
    co_return (co_await stub_->Return(testing::ReturnRequest())).status();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

}  // namespace
}  // namespace verbena::internal
