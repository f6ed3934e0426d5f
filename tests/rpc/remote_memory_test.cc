// Operations on memory that is lent for one-sided access take effect once, there and nowhere else.
// The loan ends when its owner says so. An operation that is not allowed gives a Status that says
// why.

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/memory_fixture.h"
#include "tests/transport/device/delegating_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace remote_memory_test {

using std::chrono::milliseconds;

constexpr size_t kBytes = 100'000;

class RemoteMemoryTest : public MemoryFixture, public ::testing::WithParamInterface<LeaseLevel> {
 protected:
  void StartAll(int executors = 1) {
    LinkLimits limits;
    limits.leases.level = GetParam();
    StartBothWith(limits, executors);
  }
};

INSTANTIATE_TEST_SUITE_P(Levels, RemoteMemoryTest,
                         ::testing::Values(LeaseLevel::kAuto, LeaseLevel::kRegion),
                         [](const auto& tested) {
                           return tested.param == LeaseLevel::kAuto ? "auto" : "region";
                         });

TEST_P(RemoteMemoryTest, EachByteIsWrittenWhereItIsMeantAndReadFromThere) {
  StartAll();
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(kBytes));
    // Lends a part: the bytes beside it are not lent.
    const BufferView lent = buffer.Slice(4096, kBytes - 2 * 4096);
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan, co_await channel_->Lend(lent, Access()));
    const std::pair<uint64_t, uint64_t> parts[] = {
        {0, 1}, {1, 7}, {4095, 2}, {8192, 4096}, {20001, 30003}, {lent.size() - 1, 1}};
    for (const auto& [offset, bytes] : parts) {
      std::memset(buffer.data(), 'z', buffer.size());
      VERBENA_CO_RETURN_IF_ERROR(
          co_await Used(Request(loan.handle(), testing::WRITE, offset, bytes)));
      for (size_t i = 0; i < buffer.size(); ++i) {
        const bool inside = i >= 4096 + offset && i < 4096 + offset + bytes;
        const char expected = inside ? PatternAt(i - 4096) : 'z';
        if (buffer.data()[i] == expected) continue;
        ADD_FAILURE() << "byte " << i << " of a write of " << bytes << " at " << offset;
        break;
      }
      VERBENA_CO_ASSIGN_OR_RETURN(
          testing::UseReply read,
          co_await Use(Request(loan.handle(), testing::READ, offset, bytes)));
      EXPECT_TRUE(read.right()) << bytes << " at " << offset;
    }
    FillPattern(lent);
    VERBENA_CO_ASSIGN_OR_RETURN(
        testing::UseReply all, co_await Use(Request(loan.handle(), testing::READ, 0, lent.size())));
    EXPECT_TRUE(all.right());
    co_return co_await std::move(loan).End();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

// Hundreds at once, of which a device takes at most 16, and some one or none.
TEST_P(RemoteMemoryTest, MoreReadsThanMayBeOutstandingWaitAndAllEnd) {
  StartAll();
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(300 * 512));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan, co_await channel_->Lend(buffer.view(), Access()));
    VERBENA_CO_ASSIGN_OR_RETURN(testing::UseReply read,
                                co_await Use(Request(loan.handle(), testing::READ, 0, 512, 300)));
    EXPECT_TRUE(read.right());
    co_return co_await std::move(loan).End();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(memories_.started, 300);
}

TEST_P(RemoteMemoryTest, FetchAddsSumUpAndEachSeesAnotherValue) {
  StartAll();
  if (!atomics_) GTEST_SKIP() << "the device has no atomics";
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan,
                                co_await channel_->Lend(buffer.view(), LeaseAccess::kAtomic));
    testing::UseRequest request = Request(loan.handle(), testing::FETCH_ADD, 16, 0, 200);
    request.set_operand(3);
    VERBENA_CO_ASSIGN_OR_RETURN(testing::UseReply reply, co_await Use(request));
    std::vector<uint64_t> before(reply.before().begin(), reply.before().end());
    std::sort(before.begin(), before.end());
    EXPECT_EQ(before.size(), 200u);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i], 3 * i);
    EXPECT_EQ(WordAt(buffer, 16), 600u);
    EXPECT_EQ(WordAt(buffer, 8) | WordAt(buffer, 24), 0u);
    co_return co_await std::move(loan).End();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_P(RemoteMemoryTest, ACompareAndSwapStoresOnlyWhereItFindsWhatItExpects) {
  StartAll();
  if (!atomics_) GTEST_SKIP() << "the device has no atomics";
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan, co_await channel_->Lend(buffer.view(), kAnyAccess));
    testing::UseRequest request = Request(loan.handle(), testing::COMPARE_AND_SWAP, 4088);
    request.set_operand(0);
    request.set_swap(~uint64_t{5});
    VERBENA_CO_ASSIGN_OR_RETURN(testing::UseReply first, co_await Use(request));
    EXPECT_EQ(first.before(0), 0u);
    VERBENA_CO_ASSIGN_OR_RETURN(testing::UseReply second, co_await Use(request));
    EXPECT_EQ(second.before(0), ~uint64_t{5});
    request.set_operand(~uint64_t{5});
    request.set_swap(7);
    VERBENA_CO_ASSIGN_OR_RETURN(testing::UseReply third, co_await Use(request));
    EXPECT_EQ(third.before(0), ~uint64_t{5});
    EXPECT_EQ(WordAt(buffer, 4088), 7u);
    co_return co_await std::move(loan).End();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_P(RemoteMemoryTest, ContendedSwapsOfTwoExecutorsCountRight) {
  StartAll(/*executors=*/2);
  if (!atomics_) GTEST_SKIP() << "the device has no atomics";
  Channel other(*client_runtime_, server_->address(), {.server_executor = 1});
  testing::Memories::Stub other_stub(other);
  auto run = [&]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    // One memory, lent over two links.
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan,
                                co_await channel_->Lend(buffer.view(), LeaseAccess::kAtomic));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan other_loan,
                                co_await other.Lend(buffer.view(), LeaseAccess::kAtomic));
    TaskScope scope(co_await CurrentContext());
    absl::Status here;
    absl::Status there;
    scope.Spawn([&]() -> Task<void> {
      here = co_await Used(Request(loan.handle(), testing::INCREMENT_BY_SWAPS, 0, 0, 60));
    });
    scope.Spawn([&]() -> Task<void> {
      absl::StatusOr<testing::UseReply> reply = co_await other_stub.Use(
          Request(other_loan.handle(), testing::INCREMENT_BY_SWAPS, 0, 0, 60));
      there = reply.status();
    });
    co_await scope.Join();
    VERBENA_CO_RETURN_IF_ERROR(here);
    VERBENA_CO_RETURN_IF_ERROR(there);
    EXPECT_EQ(WordAt(buffer, 0), 120u);
    VERBENA_CO_RETURN_IF_ERROR(co_await std::move(loan).End());
    co_return co_await std::move(other_loan).End();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_P(RemoteMemoryTest, AServerLendsToItsClient) {
  StartAll();
  auto run = [this]() -> Task<absl::Status> {
    testing::BorrowRequest request;
    request.set_bytes(kBytes);
    request.set_access(static_cast<uint32_t>(Access()));
    VERBENA_CO_ASSIGN_OR_RETURN(testing::BorrowReply reply, co_await stub_->Borrow(request));
    VERBENA_CO_ASSIGN_OR_RETURN(RemoteMemory memory, channel_->Remote(reply.memory()));
    EXPECT_EQ(memory.size(), kBytes);
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(kBytes));
    VERBENA_CO_RETURN_IF_ERROR(co_await memory.Read(0, buffer.view()));
    EXPECT_TRUE(IsPattern(buffer.view()));
    const uint64_t word = WordAt(buffer, 8);
    std::memset(buffer.data(), 'c', 100);
    VERBENA_CO_RETURN_IF_ERROR(co_await memory.Write(kBytes - 100, buffer.Slice(0, 100)));
    if (atomics_) {
      VERBENA_CO_ASSIGN_OR_RETURN(uint64_t before, co_await memory.FetchAdd(8, 1));
      EXPECT_EQ(before, word);
    }
    VERBENA_CO_ASSIGN_OR_RETURN(testing::ReturnReply returned,
                                co_await stub_->Return(testing::ReturnRequest()));
    EXPECT_EQ(returned.content().substr(kBytes - 100), std::string(100, 'c'));
    EXPECT_EQ(returned.content()[kBytes - 101], PatternAt(kBytes - 101));
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

// --- what is refused before anything is sent

TEST_P(RemoteMemoryTest, OperationsThatTheHandleDoesNotAllowAreRefused) {
  StartAll();
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(8192));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan,
                                co_await channel_->Lend(buffer.Slice(0, 1000), Access()));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan read_only,
                                co_await channel_->Lend(buffer.view(), LeaseAccess::kRead));
    const RemoteMemoryHandle& all = loan.handle();
    absl::Status status = co_await Used(Request(all, testing::READ, 990, 11));
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    EXPECT_NE(std::string(status.message()).find("11 bytes at offset 990 of 1000"),
              std::string::npos)
        << status;
    for (const auto& [offset, bytes] : std::initializer_list<std::pair<uint64_t, uint64_t>>{
             {1000, 1}, {1001, 0}, {~uint64_t{0}, 1}, {~uint64_t{0} - 5, 10}}) {
      status = co_await Used(Request(all, testing::WRITE, offset, bytes));
      EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << offset << " " << status;
    }
    status = co_await Used(Request(read_only.handle(), testing::WRITE, 0, 10));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find("lent for read, not for write"), std::string::npos) << status;
    status = co_await Used(Request(read_only.handle(), testing::FETCH_ADD, 0));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    if (atomics_) {
      status = co_await Used(Request(all, testing::FETCH_ADD, 996));
      EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
      for (uint64_t offset : {1, 4, 7, 9}) {
        status = co_await Used(Request(all, testing::FETCH_ADD, offset));
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      }
    }
    EXPECT_EQ(buffer.data()[0], 0);
    VERBENA_CO_RETURN_IF_ERROR(co_await std::move(read_only).End());
    // The link has seen nothing of all that.
    VERBENA_CO_RETURN_IF_ERROR(co_await Used(Request(all, testing::READ, 0, 1000)));
    co_return co_await std::move(loan).End();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(LinksLost(*client_runtime_), 0u);
}

TEST_P(RemoteMemoryTest, AHandleOfNothingOrOfAnotherLinkIsRefused) {
  StartAll(/*executors=*/2);
  Channel other(*client_runtime_, server_->address(), {.server_executor = 1});
  auto run = [&]() -> Task<absl::Status> {
    absl::Status status = co_await Used(Request({}, testing::READ, 0, 0));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan, co_await other.Lend(buffer.view(), LeaseAccess::kRead));
    status = co_await Used(Request(loan.handle(), testing::READ, 0, 8));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    RemoteMemoryHandle wraps = loan.handle();
    wraps.set_bytes(~uint64_t{0});
    status = co_await Used(Request(wraps, testing::READ, 0, 8));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    // Ours, not the server's.
    EXPECT_EQ(other.Remote(loan.handle()).status().code(), absl::StatusCode::kFailedPrecondition);
    co_return co_await std::move(loan).End();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_P(RemoteMemoryTest, MemoryThatCannotBeLentIsRefused) {
  StartAll();
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    absl::StatusOr<Loan> loan = co_await channel_->Lend(BufferView(), LeaseAccess::kRead);
    EXPECT_EQ(loan.status().code(), absl::StatusCode::kInvalidArgument) << loan.status();
    loan = co_await channel_->Lend(buffer.view(), LeaseAccess::kNone);
    EXPECT_EQ(loan.status().code(), absl::StatusCode::kInvalidArgument) << loan.status();
    loan = co_await channel_->Lend(buffer.Slice(4, 100), LeaseAccess::kAtomic);
    EXPECT_EQ(loan.status().code(), absl::StatusCode::kInvalidArgument) << loan.status();
    absl::Status ended = co_await Loan().End();
    EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition) << ended;
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

TEST_P(RemoteMemoryTest, LoansLeaveWindowsToCalls) {
  StartAll();
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    std::vector<Loan> loans;
    absl::Status status;
    while (loans.size() < 1000) {
      absl::StatusOr<Loan> loan = co_await channel_->Lend(buffer.view(), LeaseAccess::kRead);
      status = loan.status();
      if (!loan.ok()) break;
      loans.push_back(*std::move(loan));
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(loans.size(), LeaseLimits().windows_per_link / 2);
    VERBENA_CO_RETURN_IF_ERROR(co_await Used(Request(loans.back().handle(), testing::READ, 0, 1)));
    while (!loans.empty()) {
      VERBENA_CO_RETURN_IF_ERROR(co_await std::move(loans.back()).End());
      loans.pop_back();
    }
    VERBENA_CO_ASSIGN_OR_RETURN(Loan again,
                                co_await channel_->Lend(buffer.view(), LeaseAccess::kRead));
    co_return co_await std::move(again).End();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

// On the soft device, which is made to say so.
TEST(RemoteMemoryDeviceTest, WithoutAtomicsTheyAreUnimplementedOnEitherSide) {
  std::unique_ptr<SoftDevice> near_soft = *SoftDevice::Create({.name = "near"});
  std::unique_ptr<SoftDevice> far_soft = *SoftDevice::Create({.name = "far"});
  for (const bool near_has : {true, false}) {
    DelegatingDevice near(*near_soft);
    DelegatingDevice far(*far_soft);
    (near_has ? far : near).can.atomics = false;
    MemoryService service;
    std::unique_ptr<Runtime> server_runtime = *RuntimeCore::Start({}, {.use = &far});
    std::unique_ptr<Server> server = *Server::Start(*server_runtime, {&service}, {});
    std::unique_ptr<Runtime> client_runtime = *RuntimeCore::Start({}, {.use = &near});
    auto run = [&]() -> Task<absl::Status> {
      Channel channel(*client_runtime, server->address());
      testing::Memories::Stub stub(channel);
      VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel.AllocateBuffer(4096));
      absl::StatusOr<Loan> atomic = co_await channel.Lend(buffer.view(), kAnyAccess);
      if (!atomic.ok()) co_return atomic.status();
      testing::UseRequest request;
      *request.mutable_memory() = atomic->handle();
      request.set_operation(testing::FETCH_ADD);
      absl::StatusOr<testing::UseReply> reply = co_await stub.Use(request);
      request.set_operation(testing::WRITE);
      request.set_bytes(4096);
      absl::StatusOr<testing::UseReply> written = co_await stub.Use(request);
      EXPECT_TRUE(written.ok()) << written.status();
      VERBENA_CO_RETURN_IF_ERROR(co_await (*std::move(atomic)).End());
      co_return reply.status();
    };
    absl::Status status = client_runtime->BlockOn(run());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_NE(std::string(status.message()).find(near_has ? "far" : "near"), std::string::npos)
        << status;
    server.reset();
    client_runtime.reset();
    server_runtime.reset();
  }
}

}  // namespace remote_memory_test
}  // namespace verbena::internal
