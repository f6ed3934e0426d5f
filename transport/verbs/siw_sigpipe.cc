#include "verbena/transport/verbs/siw_sigpipe.h"

#include <signal.h>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/verbs/siw.h"

namespace verbena::internal {

void IgnoreSiwSigpipe(const Device& device) {
  if (!IsSiw(device)) return;
  struct sigaction current = {};
  if (sigaction(SIGPIPE, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
  Log(LogLevel::kInfo,
      fmt::format("{} sends SIGPIPE to who posts to a peer that is gone: it is ignored from now on",
                  device.name()));
}

}  // namespace verbena::internal
