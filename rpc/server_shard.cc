#include "verbena/rpc/server_shard.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/poison.h"
#include "verbena/transport/log/log.h"

namespace verbena {
namespace {

// How long a shutdown waits for clients to close links that have nothing left to do.
constexpr Duration kCloseGrace = std::chrono::seconds(1);

}  // namespace

ServerShard::ServerShard(Shard& shard, const MethodTable& methods, uint32_t max_concurrent_calls)
    : shard_(shard),
      methods_(methods),
      max_concurrent_calls_(max_concurrent_calls),
      free_(methods.size()),
      tasks_(shard.executor()) {}

ServerShard::~ServerShard() {
  for (const auto& calls : free_) {
    for (ServerCall* call : calls) UnpoisonMemory(call, sizeof(*call));
  }
}

void ServerShard::Serve(std::unique_ptr<MessageStream> stream, LinkParameters offer) {
  tasks_.Spawn(Accept(std::move(stream), std::move(offer)));
}

Task<void> ServerShard::Accept(std::unique_ptr<MessageStream> stream, LinkParameters offer) {
  finished_.clear();
  auto owned = std::make_unique<ServerLink>(*this, stream->peer());
  ServerLink* server_link = owned.get();
  links_.push_back(std::move(owned));
  absl::StatusOr<Link*> link = co_await Open(std::move(stream), std::move(offer), *server_link);
  if (link.ok()) {
    server_link->Attach(**link);
    if (draining_) server_link->SendGoAway();
    co_return;
  }
  Log(LogLevel::kInfo, fmt::format("a link was not accepted: {}", link.status().ToString()));
  // Lost after it was open, OnLinkDown() has taken it off already, or will OnCallDone().
  std::erase_if(links_, [server_link](const auto& each) {
    return each.get() == server_link && each->idle();
  });
}

// On the device of the kind that the client offers.
Task<absl::StatusOr<Link*>> ServerShard::Open(std::unique_ptr<MessageStream> stream,
                                              LinkParameters offer, ServerLink& link) {
  absl::StatusOr<Endpoint*> endpoint = shard_.EndpointFor(offer.kind);
  if (endpoint.ok()) {
    co_return co_await (*endpoint)->Accept(std::move(stream), std::move(offer), link);
  }
  absl::Status told =
      co_await WithDeadline(RefuseOffer(*stream, endpoint.status()),
                            executor().now() + shard_.wanted_limits().connect_timeout);
  if (!told.ok()) Log(LogLevel::kInfo, told.ToString());
  co_return endpoint.status();
}

absl::StatusOr<ServerCall*> ServerShard::Admit(uint64_t method_id) {
  absl::Status refusal;
  const int index = methods_.Find(method_id);
  if (draining_) {
    refusal = absl::UnavailableError("the server is shutting down");
  } else if (index < 0) {
    refusal =
        absl::UnimplementedError(fmt::format("this server has no method with id {:#x}", method_id));
  } else if (active_ >= max_concurrent_calls_) {
    refusal = absl::ResourceExhaustedError(
        fmt::format("{} calls run on this executor, the most that it takes", active_));
  }
  if (!refusal.ok()) {
    ++stats_.refused;
    ++stats_.failures;
    return refusal;
  }
  ++active_;
  ++stats_.calls;
  std::vector<ServerCall*>& pool = free_[index];
  if (pool.empty()) {
    calls_.push_back(std::make_unique<ServerCall>(*this, index));
    return calls_.back().get();
  }
  ServerCall* call = pool.back();
  pool.pop_back();
  UnpoisonMemory(call, sizeof(*call));
  return call;
}

void ServerShard::Recycle(ServerCall& call) {
  free_[call.method_index()].push_back(&call);
  PoisonMemory(&call, sizeof(call));
  if (--active_ == 0 && draining_) idle_.Set();
}

void ServerShard::OnLinkDown(ServerLink& link) {
  if (link.idle()) OnLinkIdle(link);
}

void ServerShard::OnLinkIdle(ServerLink& link) {
  auto found = std::find_if(links_.begin(), links_.end(),
                            [&link](const auto& each) { return each.get() == &link; });
  if (found == links_.end()) return;
  finished_.push_back(std::move(*found));
  links_.erase(found);
  if (links_.empty() && draining_) unlinked_.Set();
}

void ServerShard::ReclaimLandings(const Endpoint& endpoint) {
  for (const auto& link : links_) {
    if (link->link() != nullptr && &link->link()->endpoint() == &endpoint) link->RevokeLandings();
  }
}

Task<absl::Status> ServerShard::WaitUntilIdle() {
  if (active_ == 0) co_return absl::OkStatus();
  co_return co_await idle_.Wait();
}

Task<absl::Status> ServerShard::WaitUntilUnlinked() {
  if (links_.empty()) co_return absl::OkStatus();
  co_return co_await unlinked_.Wait();
}

Task<void> ServerShard::Shutdown(Duration grace) {
  draining_ = true;
  for (const auto& link : links_) link->SendGoAway();
  absl::Status drained = co_await WithDeadline(WaitUntilIdle(), executor().now() + grace);
  if (!drained.ok()) {
    Log(LogLevel::kWarning,
        fmt::format("{} calls are cancelled, which did not end within the grace of the shutdown",
                    active_));
    for (const auto& link : links_) link->CancelAll();
    (void)co_await WaitUntilIdle();
  }
  // A client closes its link once it has its last response, which proves that it does; who does not
  // is not waited for.
  (void)co_await WithDeadline(WaitUntilUnlinked(), executor().now() + kCloseGrace);
  std::vector<Link*> open;
  for (const auto& link : links_) {
    if (link->link() != nullptr) open.push_back(link->link());
  }
  for (Link* link : open) link->Close(absl::UnavailableError("the server shut down"));
  tasks_.RequestCancel();
  co_await tasks_.Join();
}

}  // namespace verbena
