// The doctor says what a container or unit takes from a process, what goes on without it, and what
// gives it back on Docker, Kubernetes and systemd. Where nothing is taken it finds nothing.

#include "tools/verbena/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/link/limits.h"

namespace verbena::doctor {
namespace container_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

auto FoundIn(const std::string& what, const std::string& mend) {
  return AllOf(Field(&Finding::what, HasSubstr(what)), Field(&Finding::mend, HasSubstr(mend)));
}

// Surroundings that take nothing; each test takes one thing.
class ContainerTest : public ::testing::Test {
 protected:
  ContainerTest() {
    host_.memlock_bytes = kUnlimited;
    host_.memlock_hard_bytes = kUnlimited;
    facts_.user = 7;
    facts_.cores = 4;
  }
  std::vector<Finding> Examine() const { return ExamineContainer(facts_, host_); }
  std::string Text() const { return DescribeContainer(facts_, host_); }

  ContainerFacts facts_;
  HostFacts host_;
};

TEST_F(ContainerTest, SurroundingsThatTakeNothingHaveNoFindings) {
  EXPECT_THAT(Examine(), IsEmpty());
  EXPECT_THAT(
      Text(),
      AllOf(HasSubstr("  user              7\n"), HasSubstr("  root file system  may be written\n"),
            HasSubstr("  seccomp           no filter\n"),
            HasSubstr("  io_uring          allowed\n"),
            HasSubstr("RDMA devices may pin any memory"),
            HasSubstr("  memory.max        no bound\n"), HasSubstr("  cores             4\n")));
}

TEST_F(ContainerTest, IoUringIsRefusedByTheProfileOrByTheKernel) {
  facts_.io_uring = absl::PermissionDeniedError("io_uring_setup: Operation not permitted");
  facts_.seccomp = 2;
  EXPECT_THAT(Text(), AllOf(HasSubstr("seccomp           a filter"),
                            HasSubstr("refused (io_uring_setup: Operation not permitted)"),
                            HasSubstr("epoll")));
  EXPECT_THAT(Examine(), ElementsAre(FoundIn("seccomp profile", "seccompProfile")));
  facts_.io_uring_disabled = 2;
  EXPECT_THAT(Examine(), ElementsAre(FoundIn("kernel.io_uring_disabled is 2",
                                             "sysctl kernel.io_uring_disabled=0")));
}

TEST_F(ContainerTest, AReadOnlyRootAndAnotherUserAreEnough) {
  facts_.read_only_root = true;
  facts_.user = 0;
  facts_.no_new_privileges = true;
  EXPECT_THAT(Text(), AllOf(HasSubstr("read-only, which is enough"),
                            HasSubstr("0 (root), no new privileges")));
  EXPECT_THAT(Examine(), IsEmpty());
}

TEST_F(ContainerTest, LittleMemoryThatMayBePinnedHasARemedyForEachManagerOfContainers) {
  host_.memlock_bytes = 8 << 20;
  EXPECT_THAT(Text(), HasSubstr("2 executor(s) run with LinkLimits::Small()"));
  EXPECT_THAT(Examine(),
              ElementsAre(AllOf(FoundIn("RLIMIT_MEMLOCK is 8192 KiB", "--ulimit memlock"),
                                FoundIn("Small()", "add: [IPC_LOCK]"),
                                FoundIn("Small()", "LimitMEMLOCK=infinity"))));
  host_.memlock_bytes = 64 << 10;
  EXPECT_THAT(Text(), HasSubstr("too little for RDMA devices"));
  host_.may_lock_any_memory = true;
  EXPECT_THAT(Examine(), IsEmpty());
}

TEST_F(ContainerTest, CapabilitiesOfAUserNamespaceAreNoRemedy) {
  host_.memlock_bytes = 8 << 20;
  facts_.user_namespace = true;
  EXPECT_THAT(Text(), HasSubstr("another one to the host"));
  EXPECT_THAT(Examine(),
              ElementsAre(FoundIn("CAP_IPC_LOCK of this container does not lift", "on the host")));
}

TEST_F(ContainerTest, BudgetsBeyondMemoryMaxAreAWarning) {
  host_.cgroup_memory_bytes = uint64_t{256} << 20;
  EXPECT_THAT(Text(), HasSubstr("  memory.max        262144 KiB\n"));
  EXPECT_THAT(Examine(),
              ElementsAre(AllOf(Field(&Finding::severity, Severity::kWarning),
                                FoundIn("memory.max is 262144 KiB", "resources.limits.memory"))));
  host_.cgroup_memory_bytes = uint64_t{4} << 30;
  EXPECT_THAT(Examine(), IsEmpty());
}

TEST_F(ContainerTest, AQuotaOfProcessorTimeStopsExecutorsThatPoll) {
  facts_.core_quota = 1.5;
  EXPECT_THAT(Text(), HasSubstr("4, of which a quota grants 1.50"));
  EXPECT_THAT(Examine(), Contains(FoundIn("1.50 cores of time", "kEvent")));
}

}  // namespace container_test
}  // namespace verbena::doctor
