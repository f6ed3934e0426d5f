// CallSlots: the calls of one link that a server runs, by the client's call slot.
//
// A client has up to kMaxCallsInFlight slots and uses few. So the table has pages of kPageSlots,
// and only slots of calls that run take one: a request that is refused takes no memory, however
// high its slot. A page goes when its last call has ended. The table keeps one empty page for the
// next that is needed, and the page of the first slots. Part of a ServerSession.

#ifndef VERBENA_RPC_SERVER_CALL_SLOTS_H_
#define VERBENA_RPC_SERVER_CALL_SLOTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "verbena/rpc/call/call_id.h"

namespace verbena::internal {

class ServerCall;

class CallSlots {
 public:
  static constexpr uint32_t kPageSlots = 256;
  static constexpr uint32_t kMaxPages = kMaxCallsInFlight / kPageSlots;

  CallSlots() = default;
  CallSlots(const CallSlots&) = delete;
  CallSlots& operator=(const CallSlots&) = delete;
  ~CallSlots();

  // The latest call of `slot`, which still runs; nullptr if there is none.
  ServerCall* Find(uint32_t slot) const {
    const uint32_t page = slot / kPageSlots;
    return page < page_count_ ? pages_[page]->calls[slot % kPageSlots] : nullptr;
  }

  // A call begins. Find() returns it from now on, also if an earlier call of the slot still runs.
  // Precondition: slot < kMaxCallsInFlight.
  void Add(uint32_t slot, ServerCall& call) {
    const uint32_t index = slot / kPageSlots;
    if (index >= page_count_ || pages_[index] == &no_page_) [[unlikely]]
      AddPage(index);
    Page& page = *pages_[index];
    page.calls[slot % kPageSlots] = &call;
    ++page.running;
  }

  // A call that was added ends.
  void Remove(uint32_t slot, const ServerCall& call) {
    const uint32_t index = slot / kPageSlots;
    Page& page = *pages_[index];
    ServerCall*& latest = page.calls[slot % kPageSlots];
    if (latest == &call) latest = nullptr;
    if (--page.running == 0) [[unlikely]]
      DropPage(index);
  }

  // Pages that there are now, the empty ones included.
  size_t pages() const;

 private:
  struct Page {
    std::array<ServerCall*, kPageSlots> calls{};
    // Running calls of these slots; a slot may have several. The first page counts one more, and
    // so never goes: most clients need no other.
    uint32_t running = 0;
  };

  // Rare paths are out of line to keep the hot path small.
  [[gnu::cold, gnu::noinline]] void AddPage(uint32_t index);
  [[gnu::cold, gnu::noinline]] void DropPage(uint32_t index);

  // Stands for each page that is not there. Nobody writes to it.
  static Page no_page_;

  std::unique_ptr<Page*[]> pages_;
  uint32_t page_count_ = 0;  // of pages_
  std::unique_ptr<Page> spare_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_CALL_SLOTS_H_
