// CallLink: the link that calls come from, as they see it, and CallSlots, its calls by slot.
//
// The base of a ServerSession, on its executor's thread. It outlives its calls: the link may be
// lost while they run.

#ifndef VERBENA_RPC_SERVER_CALL_LINK_H_
#define VERBENA_RPC_SERVER_CALL_LINK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/rpc/stream/windows.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {

class Link;
class ServerCall;

// CallSlots: the calls of one link that a server runs, by the client's call slot.
//
// A client has up to kMaxCallsInFlight slots and uses few. So the table has pages of kPageSlots,
// and only slots of calls that run take one: a request that is refused takes no memory, however
// high its slot. A page goes when its last call has ended. The table keeps one empty page for the
// next that is needed, and the page of the first slots. Part of a CallLink.
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
    VERBENA_DCHECK(slot < kMaxCallsInFlight) << slot;
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
    VERBENA_DCHECK(index < page_count_) << "slot " << slot << " of " << page_count_ << " pages";
    Page& page = *pages_[index];
    VERBENA_DCHECK(page.running > 0) << "no call runs in the page of slot " << slot;
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

class CallLink : public ShortageListener {
 public:
  CallLink(const CallLink&) = delete;
  CallLink& operator=(const CallLink&) = delete;

  // nullptr until the link opens, which is before its handshake has ended, and once it is down.
  Link* link() const { return link_; }
  const std::string& peer() const { return peer_; }
  // The parts that context blocks over the link may have, once it has opened.
  const ContextFeatures& context_features() const { return context_features_; }
  // The client of this link, which may have other links.
  ServerClient& client() const { return *client_; }
  // The windows that the link's streams share. Precondition: a stream was opened.
  StreamLink& streams() { return streams_; }

  // A call begins or stops waiting for what the client owes: room for its response, or a landing.
  void BeginWait() { ++waits_; }
  void EndWait() {
    VERBENA_CHECK(waits_ > 0) << "no call waits for " << peer_;
    --waits_;
  }
  // A call of `slot` has ended, well or badly.
  void Remove(uint32_t slot, const ServerCall& call) {
    by_slot_.Remove(slot, call);
    if (link_ == nullptr) [[unlikely]]
      OnCallEndedWithoutLink();
  }

  // Refuses a call that waited for its turn, and is over. May close the link.
  virtual void RefuseQueued(CallId id, RefusalReason reason) = 0;
  // Grants memory for the next payload of a request, after one of `bytes` has come. Only while
  // open.
  virtual void OfferLanding(size_t bytes) = 0;

 protected:
  // `grace` as StreamLink has it.
  CallLink(std::shared_ptr<ServerClient> client, std::string peer, Duration grace)
      : client_(std::move(client)), peer_(std::move(peer)), streams_(grace) {}
  ~CallLink() = default;

  virtual void OnCallEndedWithoutLink() = 0;

  Link* link_ = nullptr;
  const std::shared_ptr<ServerClient> client_;
  const std::string peer_;
  CallSlots by_slot_;
  StreamLink streams_;
  uint32_t waits_ = 0;
  ContextFeatures context_features_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_CALL_LINK_H_
