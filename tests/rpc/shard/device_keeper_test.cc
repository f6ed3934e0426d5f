// A DeviceKeeper keeps an opening of its device exactly as long as a user holds it, bounds the
// openings that cannot be closed, and answers while it logs. The test plays the users.

#include "verbena/rpc/shard/device_keeper.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/device/fragile_devices.h"

namespace verbena::internal {
namespace device_keeper_test {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

using Opened = std::shared_ptr<OpenedDevice>;

constexpr std::chrono::seconds kLimit(20);

class FakeUser final : public DeviceKeeper::User {
 public:
  // The user lets go of the failed devices, which the caller takes.
  std::vector<Opened> TakeFailed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(failed_, {});
  }
  Opened AwaitFailure() {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool failed = changed_.wait_for(lock, kLimit, [this] { return !failed_.empty(); });
    EXPECT_TRUE(failed) << "no device fails";
    std::vector<Opened> all = std::exchange(failed_, {});
    return all.empty() ? nullptr : std::move(all.front());
  }
  void AwaitOpening(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLimit, [&] { return opened_ >= count; }))
        << "the device is not opened again";
    EXPECT_EQ(opened_, count);
  }
  int prepared() const { return prepared_; }
  int opened() {
    std::lock_guard<std::mutex> lock(mutex_);
    return opened_;
  }
  // Called on the keeper's thread.
  std::function<void()> on_prepare = [] {};

 private:
  void OnDeviceFailed(const Opened& opened) override {
    std::lock_guard<std::mutex> lock(mutex_);
    failed_.push_back(opened);
    changed_.notify_all();
  }
  absl::StatusOr<std::optional<EndpointMemory>> Prepare(DeviceContext&) override {
    ++prepared_;
    on_prepare();
    return std::nullopt;
  }
  void OnDeviceOpened(Opened, std::optional<EndpointMemory>) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ++opened_;
    changed_.notify_all();
  }

  std::atomic<int> prepared_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Opened> failed_;
  int opened_ = 0;
};

class DeviceKeeperTest : public ::testing::Test {
 protected:
  void Start(DeviceKeeper::Options options = {}) {
    options.backoff = {.first = std::chrono::milliseconds(1),
                       .longest = std::chrono::milliseconds(4)};
    absl::StatusOr<std::unique_ptr<DeviceKeeper>> keeper =
        DeviceKeeper::Create(*devices_.Open(), [this] { return devices_.Open(); }, options);
    ASSERT_TRUE(keeper.ok()) << keeper.status();
    keeper_ = *std::move(keeper);
    EXPECT_NE(keeper_->Attach(user_), nullptr);
  }
  // Fails the device and reports it drained. The returned opening is the only one that is held.
  Opened FailAndDrain() {
    devices_.Fail();
    Opened failed = user_.AwaitFailure();
    if (failed != nullptr) keeper_->OnDrained(*failed);
    return failed;
  }
  std::string Absence() { return std::string(keeper_->Absence().message()); }
  // Collects what is logged.
  void AwaitLine(const std::string& part) {
    if (!::testing::Matches(Contains(HasSubstr(part)))(lines_)) log_.Await(part);
    for (std::string& line : log_.Take()) lines_.push_back(std::move(line));
  }

  CapturedLog log_;
  std::vector<std::string> lines_;
  FragileDevices devices_{"fragile"};
  FakeUser user_;
  std::unique_ptr<DeviceKeeper> keeper_;
};

class ReserveTest : public DeviceKeeperTest {
 protected:
  ReserveTest() {
    keeper_ =
        DeviceKeeper::InReserve("fragile", LinkKind::kSoft, [this] { return devices_.Open(); },
                                {.backoff = {.first = std::chrono::milliseconds(1),
                                             .longest = std::chrono::milliseconds(4)}});
    EXPECT_EQ(keeper_->Attach(user_), nullptr);
  }
};

TEST_F(ReserveTest, ADeviceInReserveIsOpenedOnceAndOnlyWhenItIsNeeded) {
  EXPECT_TRUE(keeper_->in_reserve());
  EXPECT_EQ(devices_.opened(), 0);
  ASSERT_EQ(keeper_->Wake(), absl::OkStatus());
  EXPECT_FALSE(keeper_->in_reserve());
  user_.AwaitOpening(1);
  ASSERT_EQ(keeper_->Wake(), absl::OkStatus());
  EXPECT_EQ(devices_.opened(), 1);
  EXPECT_EQ(user_.opened(), 1);
  FakeUser late;
  EXPECT_NE(keeper_->Attach(late), nullptr);
}

TEST_F(ReserveTest, ADeviceInReserveIsPresent) { EXPECT_EQ(keeper_->Presence(), absl::OkStatus()); }

TEST_F(ReserveTest, ADeviceThatCannotBeOpenedStaysInReserve) {
  devices_.Refuse(1);
  EXPECT_TRUE(absl::IsNotFound(keeper_->Wake()));
  EXPECT_TRUE(keeper_->in_reserve());
  EXPECT_EQ(user_.opened(), 0);
  EXPECT_EQ(keeper_->Wake(), absl::OkStatus());
  EXPECT_EQ(user_.opened(), 1);
}

TEST_F(ReserveTest, OnceOpenedItIsReopenedAsAnyDevice) {
  ASSERT_EQ(keeper_->Wake(), absl::OkStatus());
  (void)FailAndDrain();
  user_.AwaitOpening(2);
  EXPECT_EQ(devices_.opened(), 2);
}

TEST_F(ReserveTest, NothingIsOpenedOnceTheRuntimeEnds) {
  keeper_->Stop();
  EXPECT_FALSE(keeper_->Wake().ok());
  EXPECT_EQ(user_.opened(), 0);
}

TEST_F(DeviceKeeperTest, ADeviceIsPresentWhileAnOpeningIsInService) {
  Start();
  EXPECT_EQ(keeper_->Presence(), absl::OkStatus());
  devices_.Refuse(1'000'000);
  (void)FailAndDrain();
  const absl::Status lost = keeper_->Presence();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(lost.message(), HasSubstr("fragile has failed, or was removed"));
  devices_.Refuse(0);
  user_.AwaitOpening(1);
  EXPECT_EQ(keeper_->Presence(), absl::OkStatus());
}

TEST_F(DeviceKeeperTest, AnOpeningIsClosedWhenTheLastWhoHoldsItLetsGo) {
  Start();
  Opened held = FailAndDrain();
  user_.AwaitOpening(1);
  EXPECT_EQ(devices_.alive(), 2);
  held.reset();
  devices_.AwaitAlive(1);
}

TEST_F(DeviceKeeperTest, ADeviceThatCannotBeClosedStaysUntilItsKeeperEnds) {
  Start();
  devices_.AnswerForPds(absl::InternalError("EIO"));
  (void)FailAndDrain();
  user_.AwaitOpening(1);
  AwaitLine("fragile, which has failed, stays open until its runtime ends");
  EXPECT_EQ(devices_.alive(), 2);
  keeper_.reset();
  EXPECT_EQ(devices_.alive(), 0);
}

TEST_F(DeviceKeeperTest, AnOpeningThatIsHeldForLongerThanItsKeeperKeepsTheDeviceAlone) {
  Start();
  Opened held = FailAndDrain();
  user_.AwaitOpening(1);
  keeper_.reset();
  EXPECT_EQ(devices_.alive(), 1);
  EXPECT_EQ(held->context, nullptr);
  held.reset();
  EXPECT_EQ(devices_.alive(), 0);
}

TEST_F(DeviceKeeperTest, StopWaitsForTheAttemptThatIsUnderWay) {
  Start();
  FakeUser second;
  keeper_->Attach(second);
  absl::Notification stopped;
  std::thread stopping;
  user_.on_prepare = [&] {
    stopping = std::thread([&] {
      keeper_->Stop();
      stopped.Notify();
    });
    // The keeper tells nobody that it is being stopped.
    while (Absence().find("its runtime ends") == std::string::npos) std::this_thread::yield();
    // A Stop() that does not wait gets ample opportunity to return.
    for (int i = 0; i < 10'000; ++i) std::this_thread::yield();
    EXPECT_FALSE(stopped.HasBeenNotified()) << "users go while one of them is in use";
  };
  devices_.Fail();
  stopped.WaitForNotification();
  stopping.join();
  EXPECT_EQ(user_.prepared(), 1);
  EXPECT_EQ(second.prepared(), 0);
  EXPECT_EQ(user_.opened() + second.opened(), 0);
  (void)user_.TakeFailed();
  (void)second.TakeFailed();
  keeper_.reset();
  EXPECT_EQ(devices_.alive(), 0);
}

TEST_F(DeviceKeeperTest, AThreadThatTheSystemRefusesIsStartedWhenACallAsksAgain) {
  std::atomic<bool> refuse = true;
  std::atomic<int> refused = 0;
  DeviceKeeper::Options options;
  options.start_thread = [&](std::function<void()> work) {
    if (refuse) {
      ++refused;
      refused.notify_all();
      throw std::system_error(EAGAIN, std::generic_category());
    }
    return std::thread(std::move(work));
  };
  Start(std::move(options));
  devices_.Fail();
  refused.wait(0);
  EXPECT_THAT(Absence(), HasSubstr("the system starts no thread for it"));
  AwaitLine("the system starts no thread that opens fragile again");
  refuse = false;
  (void)keeper_->Absence();
  user_.AwaitOpening(1);
  EXPECT_THAT(lines_, Contains(HasSubstr("the system starts no thread")).Times(1));
}

// A sink that another thread, which asks the keeper, has to get past: it takes down the lines
// during which there was no answer.
class AskingSink {
 public:
  explicit AskingSink(DeviceKeeper& keeper) {
    {
      std::lock_guard<std::mutex> lock(All().mutex);
      All().keeper = &keeper;
    }
    SetLogSink([](const LogRecord& record) { All().OnLine(std::string(record.text)); });
  }
  AskingSink(const AskingSink&) = delete;
  AskingSink& operator=(const AskingSink&) = delete;
  // A line may be on its way still.
  ~AskingSink() {
    SetLogSink(nullptr);
    std::unique_lock<std::mutex> lock(All().mutex);
    All().keeper = nullptr;
    All().idle.wait(lock, [] { return All().asking == 0; });
  }

  // Waits for a line with `part` in it.
  static void Await(const std::string& part) {
    std::unique_lock<std::mutex> lock(All().mutex);
    All().grown.wait(
        lock, [&part] { return ::testing::Matches(Contains(HasSubstr(part)))(All().lines); });
  }
  static std::vector<std::string> unanswered() {
    std::lock_guard<std::mutex> lock(All().mutex);
    return All().unanswered;
  }

 private:
  struct Shared {
    void OnLine(const std::string& line) {
      std::unique_lock<std::mutex> lock(mutex);
      if (keeper == nullptr) return;
      ++asking;
      const auto answered = std::make_shared<absl::Notification>();
      std::thread([this, answered, keeper = keeper] {
        (void)keeper->Absence();
        answered->Notify();
        std::lock_guard<std::mutex> lock(mutex);
        if (--asking == 0) idle.notify_all();
      }).detach();
      lock.unlock();
      // Whoever waits for the sink never answers; a busy machine may delay the others.
      const bool in_time = answered->WaitForNotificationWithTimeout(absl::Seconds(10));
      lock.lock();
      lines.push_back(line);
      grown.notify_all();
      if (!in_time) unanswered.push_back(line);
    }

    std::mutex mutex;  // guards what follows
    std::condition_variable idle;
    std::condition_variable grown;
    DeviceKeeper* keeper = nullptr;
    int asking = 0;
    std::vector<std::string> lines;
    std::vector<std::string> unanswered;
  };
  static Shared& All() {
    static Shared shared;
    return shared;
  }
};

TEST_F(DeviceKeeperTest, ASinkThatIsHeldUpHoldsUpNobodyWhoAsksForTheDevice) {
  std::atomic<bool> refuse = true;
  DeviceKeeper::Options options;
  options.start_thread = [&refuse](std::function<void()> work) {
    if (refuse) throw std::system_error(EAGAIN, std::generic_category());
    return std::thread(std::move(work));
  };
  Start(std::move(options));
  const AskingSink sink(*keeper_);
  (void)FailAndDrain();
  AskingSink::Await("the system starts no thread that opens fragile again");
  devices_.Refuse(1);
  refuse = false;
  (void)keeper_->Absence();
  user_.AwaitOpening(1);
  AskingSink::Await("fragile is not reopened yet (attempt 1");
  AskingSink::Await("fragile was reopened after 2 attempts");
  devices_.Fail();
  const Opened first = user_.AwaitFailure();
  user_.AwaitOpening(2);
  devices_.Fail();
  const Opened second = user_.AwaitFailure();
  AskingSink::Await("fragile is not reopened yet: links of 2");
  keeper_->OnDrained(*first);
  user_.AwaitOpening(3);
  EXPECT_THAT(AskingSink::unanswered(), ::testing::IsEmpty());
}

TEST_F(DeviceKeeperTest, LinksOfTwoFormerOpeningsThatDoNotEndAreNamedAsTheReasonToWait) {
  Start();
  devices_.Fail();
  const Opened first = user_.AwaitFailure();
  user_.AwaitOpening(1);
  EXPECT_THAT(Absence(), Not(HasSubstr("former openings")));
  devices_.Fail();
  const Opened second = user_.AwaitFailure();
  AwaitLine("fragile is not reopened yet: links of 2 of its former openings");
  EXPECT_THAT(Absence(), HasSubstr("links of 2 of its former openings are still being torn down"));
  EXPECT_EQ(devices_.opened(), 2);
  keeper_->OnDrained(*first);
  user_.AwaitOpening(2);
  AwaitLine("fragile was reopened");
  EXPECT_THAT(lines_, Contains(HasSubstr("is not reopened yet")).Times(1));
}

TEST_F(DeviceKeeperTest, OpeningsThatAreNotClosedAreBoundedAndNamedAsTheReasonToWait) {
  Start();
  std::vector<Opened> held;
  const int most = static_cast<int>(DeviceKeeper::kMostOpenings);
  for (int i = 1; i < most; ++i) {
    held.push_back(FailAndDrain());
    user_.AwaitOpening(i);
  }
  held.push_back(FailAndDrain());
  AwaitLine("fragile is not reopened yet: 16 of its former openings are not closed");
  EXPECT_THAT(Absence(), HasSubstr("16 of its former openings are not closed"));
  EXPECT_EQ(devices_.opened(), most);
  held.pop_back();
  user_.AwaitOpening(most);
}

}  // namespace device_keeper_test
}  // namespace verbena::internal
