// A table of names and addresses is parsed, or refused with the faulty line. The bootstrap connects
// and listens by these names, and lists them if a name is unknown.

#include "verbena/transport/connect/bootstrap.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/connect/waiting_scheduler.h"
#include "verbena/transport/connect/local_bootstrap.h"

namespace verbena::internal {
namespace static_bootstrap_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(StaticAddressesTest, ALineIsANameAndAnAddressAndCommentsAreNothing) {
  absl::StatusOr<StaticAddresses> addresses = ParseStaticAddresses(
      "# the cluster\n\nstorage-7\t10.0.0.7:4000  # rack 2\n  storage-8 [fd00::8]:4000");
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_THAT(*addresses,
              ElementsAre(Pair("storage-7", "10.0.0.7:4000"), Pair("storage-8", "[fd00::8]:4000")));
}

TEST(StaticAddressesTest, AnErrorIsNamedWithItsLine) {
  EXPECT_THAT(ParseStaticAddresses("a b\nlonely\n").status().ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("line 2, \"lonely\"")));
  EXPECT_THAT(ParseStaticAddresses("a b c").status().ToString(), HasSubstr("line 1, \"a b c\""));
  EXPECT_THAT(ParseStaticAddresses("a b\nc d\na e").status().ToString(),
              HasSubstr("line 3: a has an address already, b"));
}

class StaticBootstrapTest : public testing::Test {
 protected:
  LocalNetwork network_;
  LocalBootstrap local_{network_};
  StaticBootstrap bootstrap_{local_, {{"store", "address of the store"}}};
  WaitingScheduler scheduler_;
};

TEST_F(StaticBootstrapTest, ANameIsConnectedToItsAddressAndListensThere) {
  absl::StatusOr<std::unique_ptr<MessageListener>> listener = bootstrap_.Listen("store");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ((*listener)->address(), "address of the store");
  EXPECT_TRUE(scheduler_.Run(bootstrap_.Connect("store")).ok());
}

TEST_F(StaticBootstrapTest, AnUnknownNameIsToldWhichThereAre) {
  for (const absl::Status& status : {scheduler_.Run(bootstrap_.Connect("stare")).status(),
                                     bootstrap_.Listen("stare").status()}) {
    EXPECT_THAT(status.ToString(), AllOf(HasSubstr("NOT_FOUND"), HasSubstr("\"stare\""),
                                         HasSubstr("the table has: store")));
  }
}

}  // namespace static_bootstrap_test
}  // namespace verbena::internal
