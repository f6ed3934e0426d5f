// How an Endpoint ends whose device is opened again, while others may still hold what it gave out.

#include <iterator>
#include <memory>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

// Links that the device's failure has closed keep that reason.
void Endpoint::Retire(const absl::Status& reason) {
  if (!service_.failed()) Fail(reason);
}

bool Endpoint::unused() const {
  return drained() && tasks_.holds.size() == 0 && !life_.in_use() && memory_->send().unused() &&
         memory_->receive().unused() && memory_->landing().unused();
}

Task<void> Endpoint::Release() {
  VERBENA_CHECK(unused()) << device_name() << ", links " << links_.count();
  co_await Shutdown();
  queues_.Unsubscribe();
  // Before the receives, which its completions and a flush would look for.
  FlushHook::Unlink();
  auto memory = std::make_unique<EndpointMemory>();
  memory->receives = queues_.TakeReceives();
  memory->link_receives = queues_.TakeLinkReceives();
  memory->send = supplies_.TakeMemory();
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
