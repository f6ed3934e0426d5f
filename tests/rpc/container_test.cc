// In surroundings as containers and units have them a runtime starts, serves and calls, payloads
// included: with a root that is read-only, as another user, without io_uring, with next to no
// memory that may be pinned, and with all of these together. What the kernel refuses to a test is
// left out.

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/rpc/payload_service.h"
#include "tests/support/forbidden_call.h"
#include "tests/support/in_a_child.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

constexpr uid_t kNobody = 65534;
constexpr size_t kBytes = (1 << 20) + 123;

// Each takes one thing from this process. False: the kernel refuses.

bool RootIsReadOnly() {
  const int made = open("/verbena-container-test", O_CREAT | O_WRONLY | O_EXCL, 0600);
  if (made < 0) return errno == EROFS;
  close(made);
  unlink("/verbena-container-test");
  return false;
}

bool MakeRootReadOnly() {
  if (RootIsReadOnly()) return true;
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  // In a namespace of users, flags that the mount has must stay.
  struct statvfs root = {};
  if (statvfs("/", &root) != 0) return false;
  constexpr unsigned long kKept = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME;
  const unsigned long flags = (root.f_flag & kKept) | MS_REMOUNT | MS_BIND | MS_RDONLY;
  return mount(nullptr, "/", nullptr, flags, nullptr) == 0 && RootIsReadOnly();
}

bool BecomeNobody() {
  if (geteuid() != 0) return true;  // it is nobody to speak of already
  if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
      setresuid(kNobody, kNobody, kNobody) != 0) {
    return false;
  }
  // As after execve(): the process owns its files in /proc.
  return prctl(PR_SET_DUMPABLE, 1) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

bool ForbidIoUring() { return Forbid(SYS_io_uring_setup, EPERM); }

bool PinNextToNothing() {
  const rlimit limit = {.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
  return setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

// The filter comes last: it forbids the others nothing, but needs no new privileges.
bool AllThatTheKernelGrants() {
  const bool nobody = SucceedsInAChild(BecomeNobody);
  (void)MakeRootReadOnly();
  return PinNextToNothing() && (!nobody || BecomeNobody()) && ForbidIoUring();
}

struct Surrounding {
  const char* name;
  bool (*enter)();
};

const Surrounding kSurroundings[] = {
    {.name = "ReadOnlyRoot", .enter = MakeRootReadOnly},
    {.name = "AnotherUser", .enter = BecomeNobody},
    {.name = "WithoutIoUring", .enter = ForbidIoUring},
    {.name = "LittleToPin", .enter = PinNextToNothing},
    {.name = "All", .enter = AllThatTheKernelGrants},
};

// A payload there and back.
Task<absl::Status> CallOnce(Channel& channel) {
  testing::Payloads::Stub stub(channel);
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer sent, co_await channel.AllocateBuffer(kBytes));
  FillPattern(sent.view());
  testing::PutReply put;
  VERBENA_CO_RETURN_IF_ERROR(
      co_await stub.Put(testing::PutRequest(), put, {.request_payload = std::move(sent)}));
  if (!put.right() || put.bytes() != kBytes) co_return absl::DataLossError("what the server got");
  co_return absl::OkStatus();
}

absl::Status ServeAndCall() {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Start({.executors = 2}));
  PayloadService service;
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
                           Server::Start(*runtime, {&service}, {.address = "127.0.0.1:0"}));
  Channel channel(*runtime, server->address());
  return runtime->BlockOn(CallOnce(channel));
}

class ContainerTest : public ::testing::TestWithParam<Surrounding> {
 protected:
  static void SetUpTestSuite() { unsetenv("VERBENA_DEVICE"); }  // it would say what "auto" means
};

TEST_P(ContainerTest, ARuntimeStartsServesAndCalls) {
  if (!SucceedsInAChild(GetParam().enter)) {
    GTEST_SKIP() << "the kernel refuses these surroundings to a test";
  }
  EXPECT_TRUE(SucceedsInAChild([] {
    if (!GetParam().enter()) return false;
    const absl::Status status = ServeAndCall();
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return status.ok();
  }));
}

INSTANTIATE_TEST_SUITE_P(, ContainerTest, ::testing::ValuesIn(kSurroundings),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace verbena::internal
