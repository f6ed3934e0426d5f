// How an Endpoint ends whose device is opened again, while others may still hold what it gave out.

#include <iterator>
#include <memory>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/log.h"

namespace verbena::internal {

// Links that the device's failure has closed keep that reason.
void Endpoint::Retire(const absl::Status& reason) {
  if (!failed_) Fail(reason);
}

bool Endpoint::unused() const {
  return drained() && holds_.size() == 0 && users_.use_count() == 1 && memory_->send().unused() &&
         memory_->receive().unused() && memory_->landing().unused();
}

Task<void> Endpoint::Release() {
  VERBENA_CHECK(unused()) << device_name() << ", links " << stats_.links;
  co_await Shutdown();
  UnsubscribeQueues();
  // Before the receives, which its completions and a flush would look for.
  FlushHook::Unlink();
  if (absl::Status removed = executor_.RemoveCq(cq_); !removed.ok()) {
    Log(LogLevel::kError,
        fmt::format("a completion queue was not destroyed: {}", removed.ToString()));
  }
  cq_ = nullptr;
  auto memory = std::make_unique<EndpointMemory>();
  memory->receives = std::move(receives_);
  send_room_.reset();
  memory->send_buffers = std::move(send_buffers_);
  memory->atomic_scratch = std::move(atomic_scratch_);
  for (BufferPool* pool : {&memory_->send(), &memory_->receive(), &memory_->landing()}) {
    auto arenas = pool->TakeArenas();
    std::move(arenas.begin(), arenas.end(), std::back_inserter(memory->arenas));
  }
  (void)co_await context_.control().Finish(ControlKind::kTeardown, this,
                                           [memory = std::move(memory)]() mutable {
                                             memory.reset();
                                             return absl::OkStatus();
                                           });
}

}  // namespace verbena::internal
