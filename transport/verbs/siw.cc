#include "verbena/transport/verbs/siw.h"

#include <signal.h>

#include <cerrno>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"

namespace verbena::internal {
namespace {

// 32 bytes each (struct siw_cqe): 256 pages from the first one on, a mebibyte of the kernel's.
constexpr int kEntries = 32768;

}  // namespace

CqHandle CoverSiwQueueKey(Device& device) {
  if (!IsSiw(device)) return {};
  absl::StatusOr<ibv_cq*> cq = device.CreateCq(kEntries, nullptr, nullptr);
  return cq.ok() ? CqHandle(device, *cq) : CqHandle();
}

void IgnoreSiwSigpipe(const Device& device) {
  if (!IsSiw(device)) return;
  struct sigaction current = {};
  if (sigaction(SIGPIPE, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  const int failed = sigaction(SIGPIPE, &ignore, nullptr);
  VERBENA_CHECK(failed == 0) << "errno " << errno;
  VERBENA_LOG_LINE(
      kDevice, kInfo,
      fmt::format("{} sends SIGPIPE to who posts to a peer that is gone: it is ignored from now on",
                  device.name()));
}

}  // namespace verbena::internal
