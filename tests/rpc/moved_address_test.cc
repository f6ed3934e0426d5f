// New links of a port use the address that the port has now, also if that was replaced while a
// runtime used it. Runs in a guest with one rxe device on a dummy interface, also with queue pairs
// connected by rdma_cm, and changes that interface; afterwards it is as it was.

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/rpc/testing_service.h"
#include "tests/transport/base/captured_log.h"

namespace verbena {
namespace moved_address_test {

using ::testing::Contains;
using ::testing::HasSubstr;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class MovedAddressTest : public RpcTest {
 protected:
  void SetUp() override {
    if (Variable("VERBENA_DEVICE") != "rdma:rxe0" || !Variable("VERBENA_PEER_DEVICE").empty()) {
      GTEST_SKIP() << "needs a guest with one rxe device";
    }
    StartBoth();
  }
  void TearDown() override {
    if (IsSkipped()) return;
    Replace(kOther, kUsual);
  }

  struct Address {
    std::string text;
    std::string gid_end;
  };
  inline static const Address kUsual = {"10.0.0.1", "0a00:0001"};
  inline static const Address kOther = {"10.0.1.1", "0a00:0101"};

  // Waits until the port has the GID of `address` and no longer that of `former`, which would carry
  // links until it is gone.
  static void Replace(const Address& former, const Address& address) {
    const std::string has = "grep -qs :ffff:";
    const std::string gids = " /sys/class/infiniband/rxe0/ports/1/gids/[0-9]";
    const std::string script = "ip addr replace " + address.text + "/24 dev eth0 && ip addr del " +
                               former.text + "/24 dev eth0; for i in $(seq 1000); do " + has +
                               address.gid_end + gids + " && ! " + has + former.gid_end + gids +
                               " && exit 0; sleep 0.01; done; exit 1";
    EXPECT_EQ(std::system(script.c_str()), 0) << script;
  }

  // Over a link of its own.
  absl::Status CallOverANewLink() {
    stub_.reset();
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    return Run(EchoOnce(1, "over a new link"));
  }
};

TEST_F(MovedAddressTest, NewLinksUseTheAddressThatThePortHasNow) {
  EXPECT_EQ(Run(EchoOnce(0, "before")), absl::OkStatus());
  CapturedLog log;
  Replace(kUsual, kOther);
  Eventually([this] { return CallOverANewLink().ok(); }, "a call over a new link");
  const std::vector<std::string> lines = log.Take();
  EXPECT_THAT(lines, Contains(HasSubstr("rxe0: new links use GID 2")));
  if (Variable("VERBENA_CONNECT") == "rdma_cm") {
    EXPECT_THAT(lines, Contains(HasSubstr("rdma_cm listens at 10.0.1.1")));
  }
}

}  // namespace moved_address_test
}  // namespace verbena
