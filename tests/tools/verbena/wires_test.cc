// The doctor says which wire two processes of this host take, and why, from what the kernel lets
// them share.

#include "tools/verbena/wires.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "tools/verbena/sharing_facts.h"

namespace verbena::doctor {
namespace wires_test {

using ::testing::HasSubstr;
using ::testing::Not;

// A host on which everything may be shared; each test takes something away.
SharingFacts Generous() {
  SharingFacts facts;
  facts.user = 7;
  facts.namespaces = {{"net", "42"}, {"pid", ""}};
  facts.ptrace_scope = 0;
  return facts;
}

TEST(WiresTest, ProcessesOfOneUserInOneNetworkShareMemory) {
  const std::string text = DescribeWires(Generous());
  EXPECT_THAT(text, HasSubstr("user              7\n"));
  EXPECT_THAT(text, HasSubstr("net 42, pid unknown\n"));
  EXPECT_THAT(text, HasSubstr("both of user 7 and in network namespace 42: shared memory"));
  EXPECT_THAT(text, HasSubstr("of two users: TCP, because"));
  EXPECT_THAT(text, HasSubstr("in two network namespaces: TCP"));
  EXPECT_THAT(text, HasSubstr("pools are copied by the kernel, if they have 8 KiB or more"));
}

TEST(WiresTest, WithoutMemoryToShareThereIsTcpAlone) {
  SharingFacts facts = Generous();
  facts.memory = absl::PermissionDeniedError("memfd_create: not permitted");
  const std::string text = DescribeWires(facts);
  EXPECT_THAT(text, HasSubstr("memory to share   no (memfd_create: not permitted)"));
  EXPECT_THAT(text, HasSubstr("TCP takes its place"));
  EXPECT_THAT(text, Not(HasSubstr(": shared memory")));
}

TEST(WiresTest, YamaIsNamedIfItForbidsTheKernelsCopies) {
  SharingFacts facts = Generous();
  facts.ptrace_scope = 1;
  EXPECT_THAT(DescribeWires(facts), HasSubstr("are copied by the kernel")) << "by privilege";
  facts.read_other = absl::PermissionDeniedError("process_vm_readv: not permitted");
  const std::string text = DescribeWires(facts);
  EXPECT_THAT(text, HasSubstr("process_vm_readv  no (process_vm_readv: not permitted)"));
  EXPECT_THAT(text, HasSubstr("go through a ring in pieces"));
  EXPECT_THAT(text, HasSubstr("kernel.yama.ptrace_scope is 1"));
}

TEST(WiresTest, WithoutYamaItIsNotBlamed) {
  SharingFacts facts = Generous();
  facts.ptrace_scope.reset();
  facts.write_other = absl::PermissionDeniedError("process_vm_writev: not permitted");
  const std::string text = DescribeWires(facts);
  EXPECT_THAT(text, HasSubstr("ptrace scope      none (no Yama)"));
  EXPECT_THAT(text, HasSubstr("lets no process reach into another\n"));
}

TEST(WiresTest, WithoutDescriptorsOfProcessesTheKernelCopiesNothing) {
  SharingFacts facts = Generous();
  facts.process_handle = absl::UnimplementedError("pidfd_open: not implemented");
  EXPECT_THAT(DescribeWires(facts), HasSubstr("the kernel gives no descriptor of another process"));
}

TEST(SharingFactsTest, ThisProcessHasAUserAndNamespaces) {
  const SharingFacts facts = ReadSharingFacts();
  EXPECT_EQ(facts.namespaces.size(), 6u);
  EXPECT_THAT(facts.namespaces.at("net"), Not(::testing::IsEmpty()));
  // The tests of the soft device need it.
  EXPECT_TRUE(facts.memory.ok()) << facts.memory;
}

}  // namespace wires_test
}  // namespace verbena::doctor
