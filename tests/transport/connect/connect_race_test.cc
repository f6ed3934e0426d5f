// A race reaches whichever address of a host answers, however many before it are silent or refuse,
// with a bounded number of sockets, and leaves nothing behind when it is closed.

#include "verbena/transport/connect/connect_race.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address_v4.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/full_listener.h"
#include "tests/support/held_port.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {
namespace connect_race_test {

using boost::asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;

tcp::endpoint At(uint16_t port) {
  return tcp::endpoint(boost::asio::ip::address_v4::loopback(), port);
}

// The descriptors of this process.
ptrdiff_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

class ConnectRaceTest : public testing::Test {
 protected:
  ConnectRaceTest() { EXPECT_EQ(listen(good_.fd(), 16), 0); }

  // Each address begins as soon as its thread gets to it.
  void Start(std::vector<tcp::endpoint> addresses) {
    race_ = std::make_shared<ConnectRace>(context_, std::move(addresses), Duration::zero());
    descriptors_ = OpenDescriptors();
    race_->Start("connect to it", [this](absl::StatusOr<ConnectRace::Winner> winner) {
      result_.emplace(std::move(winner));
    });
  }

  // Returns the most sockets that the race had at once.
  ptrdiff_t RunToItsEnd() {
    ptrdiff_t most = OpenDescriptors();
    while (!result_.has_value() && context_.run_one_for(seconds(10)) > 0) {
      most = std::max(most, OpenDescriptors());
    }
    return most - descriptors_;
  }

  const HeldPort good_;
  const FullListener silent_;
  boost::asio::io_context context_;
  std::shared_ptr<ConnectRace> race_;
  std::optional<absl::StatusOr<ConnectRace::Winner>> result_;
  ptrdiff_t descriptors_ = 0;  // before it began
};

TEST_F(ConnectRaceTest, ManySilentAddressesTakeFewSocketsAndHideNoOther) {
  std::vector<tcp::endpoint> addresses(3 * ConnectRace::kMostAtOnce, At(silent_.port()));
  addresses.push_back(At(good_.port()));
  Start(std::move(addresses));
  EXPECT_LE(RunToItsEnd(), static_cast<ptrdiff_t>(ConnectRace::kMostAtOnce));
  ASSERT_TRUE(result_.has_value());
  ASSERT_TRUE(result_->ok()) << result_->status();
  EXPECT_EQ((*result_)->address, At(good_.port()));
  EXPECT_EQ((*result_)->socket.remote_endpoint(), At(good_.port()));
  EXPECT_EQ(OpenDescriptors(), descriptors_ + 1) << "the losers are closed";
}

TEST_F(ConnectRaceTest, AnAddressThatRefusesIsLeftForTheNext) {
  const HeldPort nobody;
  Start({At(nobody.port()), At(good_.port())});
  RunToItsEnd();
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(result_->ok()) << result_->status();
}

TEST_F(ConnectRaceTest, AFailureSaysWhatFailedAndWhy) {
  const HeldPort nobody, nobody_else;
  Start({At(nobody.port()), At(nobody_else.port())});
  RunToItsEnd();
  ASSERT_TRUE(result_.has_value());
  EXPECT_EQ(result_->status(),
            absl::UnavailableError("connect to it: Connection refused (ECONNREFUSED)"));
  EXPECT_EQ(OpenDescriptors(), descriptors_);
}

TEST_F(ConnectRaceTest, WithoutAddressesItFailsAtOnce) {
  Start({});
  ASSERT_TRUE(result_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(result_->status())) << result_->status();
}

TEST_F(ConnectRaceTest, AClosedRaceLeavesNothingBehind) {
  Start({At(silent_.port()), At(silent_.port())});
  race_->Close();
  context_.run_for(seconds(10));
  EXPECT_TRUE(context_.stopped()) << "a handler is left";
  EXPECT_FALSE(result_.has_value());
  EXPECT_EQ(OpenDescriptors(), descriptors_);
}

TEST_F(ConnectRaceTest, EachAddressHasItsShareOfAShortPatience) {
  EXPECT_EQ(ConnectRace::HeadStart(Duration::max(), 3), ConnectRace::kHeadStart);
  EXPECT_EQ(ConnectRace::HeadStart(seconds(10), 40), ConnectRace::kHeadStart);
  EXPECT_EQ(ConnectRace::HeadStart(milliseconds(100), 4), milliseconds(25));
}

}  // namespace connect_race_test
}  // namespace verbena::internal
