// A process in another network namespace is told of the GIDs of a RoCE port with the index that
// their interface has in its own namespace. It takes none of them for its own, also if one of its
// interfaces has that index. Runs in a guest with an rxe device on eth0.

#include <net/if.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/support/in_a_child.h"
#include "verbena/transport/verbs/port.h"

namespace verbena::internal {
namespace other_namespace_test {

constexpr const char* kDevice = "rxe0";

// Moves the process, which must be one of its own, to a new network namespace in which an interface
// has that index.
bool EnterANamespaceWith(unsigned index) {
  if (unshare(CLONE_NEWNET) != 0) return false;
  char name[IF_NAMESIZE];
  if (if_indextoname(index, name) != nullptr) return true;
  const std::string script = fmt::format(
      "ip link add name other0 index {} type dummy && ip addr add 10.0.9.1/24 dev other0 && "
      "ip link set other0 up",
      index);
  return std::system(script.c_str()) == 0 && if_indextoname(index, name) != nullptr;
}

// The number of GIDs of the device's ports, and of those that are taken for this namespace's.
struct Gids {
  int all = 0;
  int ours = 0;
};
Gids Count() {
  Gids gids;
  for (const PortInfo& port : ListPorts()) {
    if (port.device != kDevice) continue;
    for (const GidInfo& gid : port.gids) {
      ++gids.all;
      if (!gid.other_namespace) ++gids.ours;
    }
  }
  return gids;
}

class OtherNamespaceTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const device = std::getenv("VERBENA_DEVICE");
    eth0_ = if_nametoindex("eth0");
    if (device == nullptr || device != std::string("rdma:") + kDevice || eth0_ == 0) {
      GTEST_SKIP() << "needs a guest with an rxe device on eth0";
    }
  }

  unsigned eth0_ = 0;
};

TEST_F(OtherNamespaceTest, AGidIsNotOursThoughAnInterfaceHasItsIndex) {
  EXPECT_GT(Count().ours, 0) << "of " << Count().all;
  EXPECT_TRUE(SucceedsInAChild([this] {
    if (!EnterANamespaceWith(eth0_)) return false;
    const Gids gids = Count();
    const absl::Status chosen = ChoosePort(ListPorts(), kDevice).status();
    std::fprintf(stderr, "%d of %d GIDs are ours; the choice: %s\n", gids.ours, gids.all,
                 chosen.ToString().c_str());
    return gids.all > 0 && gids.ours == 0 && absl::IsFailedPrecondition(chosen);
  }));
}

}  // namespace other_namespace_test
}  // namespace verbena::internal
