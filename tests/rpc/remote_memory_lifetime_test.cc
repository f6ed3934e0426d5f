// No operation touches memory that was lent for one-sided access after its loan has ended, and the
// memory always comes home: after violations, dropped loans, abandoned operations and lost links.
// On the soft device, which checks each access against its lease.

#include <algorithm>
#include <cstring>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/memory_fixture.h"
#include "tests/support/turn.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace remote_memory_lifetime_test {

using std::chrono::milliseconds;

class RemoteMemoryLifetimeTest : public MemoryFixture {
 protected:
  void StartWith(LeaseLevel level) {
    LinkLimits limits;
    limits.leases.level = level;
    // A link checks its leases twice per ping_interval; the short grace keeps the tests fast.
    limits.leases.grace = milliseconds(50);
    StartBothWith(limits);
  }

  // Until the server has begun so many operations; on a thread that runs no executor.
  void AwaitStarted(int operations) {
    const TimePoint limit = Clock::Real().Now() + std::chrono::seconds(20);
    while (memories_.started < operations && Clock::Real().Now() < limit) {
      std::this_thread::yield();
    }
    EXPECT_GE(memories_.started, operations);
  }

  // A loan of memory whose Buffer nobody keeps.
  Task<absl::StatusOr<Loan>> LentPage() {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    co_return co_await channel_->Lend(buffer.view(), kAnyAccess);
  }

  // Expects that the device refuses the server's operations for `request`, which costs the link;
  // the memory is left alone.
  Task<absl::Status> ExpectAttackFails(testing::UseRequest request, const Buffer& memory) {
    absl::Status status = co_await Used(std::move(request));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    for (size_t i = 0; i < memory.size(); ++i) {
      if (memory.data()[i] == 0) continue;
      ADD_FAILURE() << "byte " << i << " was written";
      break;
    }
    co_return absl::OkStatus();
  }
};

// --- peers that do as they like: their operations are only checked by the device

TEST_F(RemoteMemoryLifetimeTest, AnOperationBeyondWhatWasLentCostsTheLink) {
  StartWith(LeaseLevel::kStrict);
  auto run = [this](testing::Operation operation, uint64_t offset, uint64_t bytes,
                    LeaseAccess access) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitLink());
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(3 * 4096));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan,
                                co_await channel_->Lend(buffer.Slice(4096, 4096), access));
    RemoteMemoryHandle forged = loan.handle();
    forged.set_bytes(2 * 4096);
    forged.set_access(static_cast<uint32_t>(kAnyAccess));
    testing::UseRequest request = Request(forged, operation, offset, bytes);
    request.set_operand(1);
    VERBENA_CO_RETURN_IF_ERROR(co_await ExpectAttackFails(request, buffer));
    absl::Status ended = co_await std::move(loan).End();
    EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
    co_return absl::OkStatus();
  };
  using testing::Operation;
  EXPECT_EQ(Run(run(Operation::WRITE, 4000, 200, kAnyAccess)), absl::OkStatus());
  EXPECT_EQ(Run(run(Operation::WRITE, 4096, 1, kAnyAccess)), absl::OkStatus());
  EXPECT_EQ(Run(run(Operation::READ, 4095, 2, kAnyAccess)), absl::OkStatus());
  EXPECT_EQ(Run(run(Operation::FETCH_ADD, 4096, 0, kAnyAccess)), absl::OkStatus());
  // Inside the loan, but with an access that the loan does not allow.
  EXPECT_EQ(Run(run(Operation::WRITE, 0, 8, LeaseAccess::kRead | LeaseAccess::kAtomic)),
            absl::OkStatus());
  EXPECT_EQ(Run(run(Operation::READ, 0, 8, LeaseAccess::kWrite | LeaseAccess::kAtomic)),
            absl::OkStatus());
  EXPECT_EQ(Run(run(Operation::FETCH_ADD, 0, 0, LeaseAccess::kWrite | LeaseAccess::kRead)),
            absl::OkStatus());
  EXPECT_EQ(LinksLost(*client_runtime_), 7u);
}

TEST_F(RemoteMemoryLifetimeTest, AnOperationAfterTheLoansEndCostsTheLink) {
  StartWith(LeaseLevel::kStrict);
  auto run = [this](testing::Operation operation) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitLink());
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan, co_await channel_->Lend(buffer.view(), kAnyAccess));
    testing::UseRequest request = Request(loan.handle(), operation, 0, 64);
    VERBENA_CO_RETURN_IF_ERROR(co_await std::move(loan).End());
    co_return co_await ExpectAttackFails(request, buffer);
  };
  EXPECT_EQ(Run(run(testing::WRITE)), absl::OkStatus());
  EXPECT_EQ(Run(run(testing::READ)), absl::OkStatus());
  EXPECT_EQ(Run(run(testing::FETCH_ADD)), absl::OkStatus());
  EXPECT_EQ(LinksLost(*client_runtime_), 3u);
}

// --- loans that are dropped

TEST_F(RemoteMemoryLifetimeTest, ADroppedLoanEndsByItselfAndTheLinkGoesOn) {
  StartWith(LeaseLevel::kStrict);
  auto drop = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan, co_await channel_->Lend(buffer.view(), kAnyAccess));
    co_return co_await Used(Request(loan.handle(), testing::WRITE, 0, 64));
  };
  // On the executor, since the grace of the last one has only just begun there.
  auto drop_all = [&]() -> Task<absl::Status> {
    for (int i = 0; i < 5; ++i) VERBENA_CO_RETURN_IF_ERROR(co_await drop());
    EXPECT_GT(co_await LentNow(), 0u) << "the server may not be done";
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(drop_all()), absl::OkStatus());
  ExpectNothingHeld();
  EXPECT_EQ(LinksLost(*client_runtime_), 0u);
}

TEST_F(RemoteMemoryLifetimeTest, WithoutAWindowADroppedLoanCostsTheLink) {
  StartWith(LeaseLevel::kRegion);
  EXPECT_EQ(Run(LentPage()).status(), absl::OkStatus());
  ExpectNothingHeld();
  EXPECT_EQ(LinksLost(*client_runtime_), 1u);
}

TEST_F(RemoteMemoryLifetimeTest, ALoanMayBeDroppedOnAnyThreadAndAfterItsRuntime) {
  StartWith(LeaseLevel::kStrict);
  {
    absl::StatusOr<Loan> loan = Run(LentPage());
    ASSERT_TRUE(loan.ok()) << loan.status();
    Loan moved = *std::move(loan);
    EXPECT_TRUE(moved);
  }
  ExpectNothingHeld();
  EXPECT_EQ(LinksLost(*client_runtime_), 0u);
  absl::StatusOr<Loan> late = Run(LentPage());
  ASSERT_TRUE(late.ok()) << late.status();
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
}

// For the sanitizers: whichever comes first.
TEST_F(RemoteMemoryLifetimeTest, LoansMayBeDroppedWhileTheirRuntimeEnds) {
  StartWith(LeaseLevel::kStrict);
  std::vector<Loan> loans;
  for (int i = 0; i < 16; ++i) {
    absl::StatusOr<Loan> loan = Run(LentPage());
    ASSERT_TRUE(loan.ok()) << loan.status();
    loans.push_back(*std::move(loan));
  }
  std::latch both(2);
  std::thread dropper([&] {
    both.arrive_and_wait();
    while (!loans.empty()) {
      loans.pop_back();
      std::this_thread::yield();
    }
  });
  stub_.reset();
  channel_.reset();
  both.arrive_and_wait();
  client_runtime_.reset();
  dropper.join();
}

TEST_F(RemoteMemoryLifetimeTest, ALoanIsEndedAndMemoryUsedOnTheirExecutorAlone) {
  StartWith(LeaseLevel::kStrict);
  absl::StatusOr<Loan> loan = Run(LentPage());
  ASSERT_TRUE(loan.ok()) << loan.status();
  auto end = [](Loan lent) -> Task<absl::Status> { co_return co_await std::move(lent).End(); };
  EXPECT_EQ(server_runtime_->BlockOn(end(*std::move(loan))).code(),
            absl::StatusCode::kFailedPrecondition);
  auto borrow = [this]() -> Task<absl::StatusOr<RemoteMemory>> {
    testing::BorrowRequest request;
    request.set_bytes(4096);
    request.set_access(static_cast<uint32_t>(kAnyAccess));
    VERBENA_CO_ASSIGN_OR_RETURN(testing::BorrowReply reply, co_await stub_->Borrow(request));
    co_return channel_->Remote(reply.memory());
  };
  absl::StatusOr<RemoteMemory> memory = Run(borrow());
  ASSERT_TRUE(memory.ok()) << memory.status();
  auto add = [](RemoteMemory remote) -> Task<absl::Status> {
    co_return (co_await remote.FetchAdd(0, 1)).status();
  };
  EXPECT_EQ(server_runtime_->BlockOn(add(*memory)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Run(add(*memory)), absl::OkStatus());
  auto give_back = [this]() -> Task<absl::Status> {
    co_return (co_await stub_->Return(testing::ReturnRequest())).status();
  };
  EXPECT_EQ(Run(give_back()), absl::OkStatus());
}

// --- operations that are given up, and links that die

// If the target executes READs and atomic operations, they are under way when they are given up.
// The answer to the call that gave them up proves that the server is done.
TEST_F(RemoteMemoryLifetimeTest, AfterAnOperationThatWasGivenUpTheLoanCanBeEnded) {
  std::unique_ptr<SoftDevice> near = *SoftDevice::Create({.name = "near"});
  std::unique_ptr<SoftDevice> far = *SoftDevice::Create({.name = "far", .direct_copies = false});
  server_runtime_ = StartRuntime({}, {.use = far.get()});
  ServeWith(memories_);
  StartClient({}, {.use = near.get()});
  stub_ = std::make_unique<testing::Memories::Stub>(*channel_);
  constexpr size_t kTimes = 40;
  constexpr size_t kEach = 100'000;
  int given_up = 0;
  int done = 0;
  auto run = [&](testing::Operation operation, uint32_t patience_us) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(kTimes * kEach));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan, co_await channel_->Lend(buffer.view(), kAnyAccess));
    const bool atomic = operation == testing::FETCH_ADD;
    testing::UseRequest request =
        Request(loan.handle(), operation, 0, atomic ? 0 : kEach, atomic ? 500 : kTimes);
    request.set_patience_us(patience_us);
    absl::Status status = co_await Used(std::move(request));
    status.ok() ? ++done : ++given_up;
    if (!status.ok() && !absl::IsDeadlineExceeded(status)) co_return status;
    co_return co_await std::move(loan).End();
  };
  for (uint32_t patience_us : {1, 100, 200, 400, 700, 1000, 1500, 2000, 3000, 5000}) {
    for (testing::Operation operation : {testing::READ, testing::WRITE, testing::FETCH_ADD}) {
      EXPECT_EQ(Run(run(operation, patience_us)), absl::OkStatus()) << patience_us;
    }
  }
  EXPECT_EQ(Run(run(testing::READ, 0)), absl::OkStatus());
  EXPECT_GT(given_up, 0);
  EXPECT_GT(done, 0);
  EXPECT_EQ(LinksLost(*client_runtime_), 0u);
  ExpectNothingHeld();
  stub_.reset();
  channel_.reset();
  server_.reset();
  client_runtime_.reset();
  server_runtime_.reset();
}

// The scope destroys them wherever they are.
TEST_F(RemoteMemoryLifetimeTest, OperationsDestroyedAtAnyAwaitTouchNoMemoryThatIsFree) {
  StartWith(LeaseLevel::kAuto);
  auto abandon = [this](int turns) -> Task<absl::Status> {
    testing::BorrowRequest request;
    request.set_bytes(1 << 20);
    request.set_access(static_cast<uint32_t>(kAnyAccess));
    VERBENA_CO_ASSIGN_OR_RETURN(testing::BorrowReply reply, co_await stub_->Borrow(request));
    VERBENA_CO_ASSIGN_OR_RETURN(RemoteMemory memory, channel_->Remote(reply.memory()));
    {
      TaskScope scope(co_await CurrentContext());
      for (int i = 0; i < 90; ++i) {
        scope.Spawn([this, memory, i]() -> Task<void> {
          absl::StatusOr<Buffer> buffer = co_await channel_->AllocateBuffer(500'000);
          if (!buffer.ok()) co_return;
          if (i % 3 == 0) (void)co_await memory.Read(0, buffer->view());
          if (i % 3 == 1) (void)co_await memory.Write(i, buffer->view());
          for (int n = 0; i % 3 == 2 && n < 50; ++n) (void)co_await memory.FetchAdd(0, 1);
        });
      }
      for (int i = 0; i < turns; ++i) co_await Turn(client_runtime_->executor(0));
    }
    co_return (co_await stub_->Return(testing::ReturnRequest())).status();
  };
  for (int turns : {0, 1, 2, 5, 10, 30, 100, 300, 1000}) {
    EXPECT_EQ(Run(abandon(turns)), absl::OkStatus()) << turns;
  }
  EXPECT_EQ(LinksLost(*client_runtime_), 0u);
}

TEST_F(RemoteMemoryLifetimeTest, WhenTheLenderDiesOperationsEndAndMemoryComesHome) {
  StartWith(LeaseLevel::kAuto);
  constexpr uint32_t kTimes = 20'000;
  auto call = [this]() -> Task<void> {
    absl::StatusOr<Buffer> buffer = co_await Zeroed(kTimes * 64);
    if (!buffer.ok()) co_return;
    absl::StatusOr<Loan> loan = co_await channel_->Lend(buffer->view(), kAnyAccess);
    if (!loan.ok()) co_return;
    TaskScope scope(co_await CurrentContext());
    for (testing::Operation operation : {testing::READ, testing::FETCH_ADD}) {
      const uint64_t bytes = operation == testing::READ ? 64 : 0;
      scope.Spawn(
          [this, request = Request(loan->handle(), operation, 0, bytes, kTimes)]() -> Task<void> {
            (void)co_await Used(request);
          });
    }
    co_await scope.Join();
  };
  client_runtime_->Spawn(call());
  AwaitStarted(2 * kTimes);
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
  const TimePoint limit = Clock::Real().Now() + std::chrono::seconds(20);
  while (HeldBy(*server_runtime_).bytes > 0 && Clock::Real().Now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(HeldBy(*server_runtime_).bytes, 0u);
}

TEST_F(RemoteMemoryLifetimeTest, WhenTheUserDiesTheLoanIsOverAndTheMemoryComesHome) {
  StartWith(LeaseLevel::kAuto);
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(1 << 20));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan, co_await channel_->Lend(buffer.view(), kAnyAccess));
    absl::Status used;
    while (used.ok()) {
      used = co_await Used(Request(loan.handle(), testing::WRITE, 0, 1000, 1000));
    }
    co_return co_await std::move(loan).End();
  };
  std::thread killer([this] {
    AwaitStarted(1500);
    server_->Shutdown(milliseconds(0));
    server_.reset();
    server_runtime_.reset();
  });
  const absl::Status ended = Run(run());
  killer.join();
  // The handler answers though it is cancelled, or the link is lost.
  EXPECT_TRUE(ended.ok() || absl::IsUnavailable(ended)) << ended;
  Eventually([this] { return HeldBy(*client_runtime_).bytes == 0; }, "the memory is home");
}

}  // namespace remote_memory_lifetime_test
}  // namespace verbena::internal
