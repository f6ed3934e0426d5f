#include "verbena/rpc/server/handshake_gate.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/node_hash_map.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace {

enum class Phase {
  kSilent,
  kPending,
  kOpen,
  kRefused,  // it gets the refusal, and is closed then
  kEvicted
};

// An offer is young for this long after its answer. A correct client says Ready long before, unless
// it is far away or overloaded.
constexpr Duration kYoungOffer = std::chrono::seconds(1);
// The pace before any handshake has ended. (start)
constexpr Duration kFirstPace = std::chrono::milliseconds(10);
constexpr Duration kLeastPace = std::chrono::milliseconds(1);
// One slow client must not spread the turns of a storm over minutes. (start)
constexpr Duration kMostPace = std::chrono::milliseconds(100);
// The latest turn of a client whose Hello has not come. A flood draws such turns, too, and correct
// clients that the same bound refuses should not wait for these. (start)
constexpr Duration kLatestSilentTurn = std::chrono::seconds(4);

struct Ticket;
using TicketList = std::list<Ticket*>;  // oldest first

// Turns: the times at which the clients that one bound refuses come again, one after another. Turns
// are somewhat further apart than the ends of recent handshakes that this bound counts, so most
// clients find a place.
//
// A value, under the state's mutex.
class Turns {
 public:
  // A handshake has ended well and took `took`. `together` handshakes were pending at its begin,
  // itself included, and shared that time.
  void Measure(Duration took, size_t together) {
    const Duration each =
        std::clamp<Duration>(took / static_cast<int64_t>(together), Duration::zero(), kMostPace);
    pace_ += (each - pace_) / 8;
  }

  // Returns how long the next client should wait: until after the turn of the client before it, but
  // at most `longest`.
  Duration Next(TimePoint now, Duration longest) {
    const Duration step = std::max<Duration>(pace_ * 3 / 2, kLeastPace);
    const TimePoint turn = std::min(std::max(last_, now) + step, now + longest);
    last_ = std::max(last_, turn);
    return turn - now;
  }

 private:
  // Mean time between two handshakes that end, while others wait.
  Duration pace_ = kFirstPace;
  TimePoint last_{};  // the latest turn so far
};

struct Source {
  TicketList silent;
  TicketList pending;  // first those that were answered, the one that waits longest in front
  Turns turns;         // of clients that the bounds of this source refuse
  uint32_t links = 0;  // placed: pending and open
  std::vector<uint32_t> by_executor;  // of those
  uint32_t tickets = 0;
  size_t under_way() const { return silent.size() + pending.size(); }
};

// One connection. Guarded by the state's mutex, except `stream`.
struct Ticket {
  Source* source = nullptr;
  std::string source_name;
  uint64_t number = 0;   // of its arrival
  bool bounded = false;  // by the links that its source may have
  bool names_source = true;
  RuntimeId client;
  TimePoint placed_at{};    // once it is pending
  size_t ahead = 0;         // pending ones of its source at that time, itself included
  size_t ahead_in_all = 0;  // those of all sources
  std::optional<TimePoint> answered_at;
  // The client hears this instead of an answer if the gate evicts the handshake before it has one.
  absl::Status refusal;
  Phase phase = Phase::kSilent;
  TicketList::iterator place;    // in its source's queue, while silent or pending
  int index = -1;                // of its executor, once it is placed
  Executor* executor = nullptr;  // whose thread the stream belongs to
  // Both only on the executor's thread. Null once the stream is gone.
  MessageStream* stream = nullptr;
  CancelScope* hearing = nullptr;  // while the Hello is awaited
};

constexpr uint32_t kAll = ~uint32_t{0};

// `wanted`, but no more than a `part`-th of the descriptors that the process may have.
uint32_t WithinDescriptors(uint32_t wanted, uint32_t part) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const rlim_t most = std::min<rlim_t>(limit.rlim_cur / part, 1u << 20);
  return std::clamp<uint32_t>(static_cast<uint32_t>(most), 1, wanted);
}

// The links of one executor that one source may have. With fewer than four there is nothing
// to share, and the endpoint alone refuses.
uint32_t ShareOfSource(uint32_t links) { return links < 4 ? kAll : links - links / 4; }

// The part of a runtime's id that messages show: 4 bytes. Whoever knows all of it can claim it.
constexpr size_t kPrintedDigits = 8;

}  // namespace

absl::Status CheckLimits(const HandshakeLimits& limits) {
  const std::pair<const char*, uint32_t> fields[] = {
      {"handshakes", limits.handshakes},
      {"handshakes_per_source", limits.handshakes_per_source},
      {"offers", limits.offers},
      {"offers_per_source", limits.offers_per_source},
      {"links_per_client", limits.links_per_client}};
  for (const auto& [name, value] : fields) {
    if (value == 0) {
      return absl::InvalidArgumentError(
          fmt::format("ServerOptions::handshakes.{} is 0, but must be at least 1", name));
    }
  }
  return absl::OkStatus();
}

class HandshakeGate::State {
 public:
  State(const HandshakeLimits& limits, std::vector<Executor*> executors,
        uint32_t links_per_executor)
      : limits_(limits),
        handshakes_(WithinDescriptors(limits.handshakes, 4)),
        executors_(std::move(executors)),
        links_(executors_.size()) {
    VERBENA_CHECK(!executors_.empty());
    VERBENA_CHECK(links_per_executor > 0);
    const bool chosen = limits.links_per_source != 0;
    source_links_on_executor_ =
        chosen ? limits.links_per_source : ShareOfSource(links_per_executor);
    const size_t on_all = size_t{source_links_on_executor_} * executors_.size();
    const auto wanted = static_cast<uint32_t>(std::min<size_t>(on_all, kAll));
    source_links_ = chosen ? limits.links_per_source : WithinDescriptors(wanted, 2);
    descriptors_bound_ = !chosen && source_links_ < wanted;
    const absl::Status status = CheckLimits(limits);
    VERBENA_CHECK(status.ok()) << std::string(status.message());
  }

  void Enter(const std::shared_ptr<Ticket>& ticket, const MessageStream& stream) {
    std::lock_guard lock(mutex_);
    Source& source = sources_[ticket->source_name];
    if (source.under_way() >= limits_.handshakes_per_source) {
      EvictFrom(source.silent.empty() ? source.pending : source.silent, source.turns,
                fmt::format("{} of one source are under way, the most by "
                            "ServerOptions::handshakes.handshakes_per_source",
                            source.under_way()));
    } else if (under_way_ >= handshakes_) {
      EvictFrom(MostWaiting(), turns_,
                fmt::format("{} are under way, the most by "
                            "ServerOptions::handshakes.handshakes, or by a quarter "
                            "of RLIMIT_NOFILE",
                            under_way_));
    }
    source.by_executor.resize(executors_.size());
    ticket->source = &source;
    ticket->number = ++entered_;
    ticket->names_source = stream.names_source();
    ticket->bounded =
        limits_.links_per_source != 0 || (ticket->names_source && !stream.same_host());
    ticket->executor = executors_.front();
    ticket->place = source.silent.insert(source.silent.end(), ticket.get());
    ++source.tickets;
    ++under_way_;
    tickets_.emplace(ticket.get(), ticket);
  }

  absl::StatusOr<size_t> Place(Ticket& ticket, const std::string& peer,
                               const LinkParameters& offer) {
    const absl::Status claim = CheckClaim(peer, offer);
    std::lock_guard lock(mutex_);
    if (ticket.phase == Phase::kEvicted) return ticket.refusal;
    VERBENA_CHECK(ticket.phase == Phase::kSilent) << "a stream is placed once";
    absl::Status status = claim;
    if (status.ok()) status = CheckLinks(ticket, offer.runtime_id);
    const size_t index = Choose(ticket, offer);
    if (status.ok()) status = CheckExecutor(ticket, index);
    if (status.ok()) status = MakeRoom(ticket);
    if (!status.ok()) {
      ++stats_.refused;
      Drop(ticket);
      ticket.phase = Phase::kRefused;
      return status;
    }
    TicketList& pending = ticket.source->pending;
    pending.splice(pending.end(), ticket.source->silent, ticket.place);
    ticket.phase = Phase::kPending;
    ticket.client = offer.runtime_id;
    ticket.placed_at = now();
    ticket.ahead = pending.size();
    ticket.ahead_in_all = ++offers_;
    ++clients_[KeyOf(ticket, ticket.client)];
    ticket.index = static_cast<int>(index);
    ++links_[index];
    ++ticket.source->links;
    ++ticket.source->by_executor[index];
    ticket.executor = executors_[index];
    return index;
  }

  // The server answers the offer, and waits for the client from now on. An error is the refusal
  // that the client hears instead.
  absl::Status Answer(Ticket& ticket) {
    std::lock_guard lock(mutex_);
    if (ticket.phase != Phase::kPending || ticket.answered_at.has_value()) return ticket.refusal;
    TicketList& pending = ticket.source->pending;
    const auto behind_answered =
        std::find_if(pending.begin(), pending.end(),
                     [](const Ticket* each) { return !each->answered_at.has_value(); });
    pending.splice(behind_answered, pending, ticket.place);
    ticket.answered_at = ticket.executor->now();
    return absl::OkStatus();
  }

  absl::Status RefusalOf(const Ticket& ticket) const {
    std::lock_guard lock(mutex_);
    return ticket.refusal;
  }

  // The client's second message has come, which is its Ready if the client is correct.
  void Open(Ticket& ticket) {
    std::lock_guard lock(mutex_);
    if (ticket.phase != Phase::kPending) return;
    Measure(ticket);
    ticket.source->pending.erase(ticket.place);
    --offers_;
    --under_way_;
    ticket.phase = Phase::kOpen;
  }

  void Leave(Ticket& ticket) {
    std::shared_ptr<Ticket> last;  // freed outside the lock
    std::lock_guard lock(mutex_);
    Source& source = *ticket.source;
    if (ticket.phase == Phase::kSilent || ticket.phase == Phase::kPending) Drop(ticket);
    if (ticket.phase == Phase::kOpen) LeaveClient(ticket);
    if (ticket.index >= 0) {
      --links_[ticket.index];
      --source.links;
      --source.by_executor[ticket.index];
    }
    if (--source.tickets == 0) sources_.erase(ticket.source_name);
    auto found = tickets_.find(&ticket);
    last = std::move(found->second);
    tickets_.erase(found);
  }

  HandshakeStats stats() const {
    std::lock_guard lock(mutex_);
    HandshakeStats stats = stats_;
    stats.under_way = under_way_;
    stats.links = links_;
    return stats;
  }

 private:
  // A client says by itself which id it has, so another source may say the same.
  using ClientKey = std::pair<std::string, RuntimeId>;

  static ClientKey KeyOf(const Ticket& ticket, const RuntimeId& client) {
    return {ticket.source_name, client};
  }

  // On the thread that runs the accept loop. Elsewhere the executor of the thread has the time.
  TimePoint now() const { return executors_.front()->now(); }

  absl::Status CheckClaim(const std::string& peer, const LinkParameters& offer) {
    const ClaimedAddress policy = limits_.claimed_address;
    if (policy == ClaimedAddress::kIgnore) return absl::OkStatus();
    absl::Status claim = CheckClaimedAddress(peer, offer);
    if (claim.ok()) return claim;
    if (policy == ClaimedAddress::kRefuse) {
      return absl::PermissionDeniedError(
          fmt::format("{} (ServerOptions::handshakes.claimed_address is kRefuse): connect by the "
                      "network of the RDMA device, or set it to kLog",
                      std::string(claim.message())));
    }
    VERBENA_LOG_THROTTLED(claims_log_, kWarning, now(),
                          fmt::format("{}; it is served. If its hosts have several networks, set "
                                      "ServerOptions::handshakes.claimed_address to kIgnore",
                                      std::string(claim.message())),
                          {{"peer", peer}});
    return absl::OkStatus();
  }

  // All of these under mutex_.

  absl::Status CheckLinks(const Ticket& ticket, const RuntimeId& client) const {
    if (ticket.bounded && ticket.source->links >= source_links_) {
      return absl::ResourceExhaustedError(
          fmt::format("{} has {} links, the most of one source address: {}", ticket.source_name,
                      ticket.source->links, RaiseLinks(descriptors_bound_)));
    }
    auto found = clients_.find(KeyOf(ticket, client));
    if (found != clients_.end() && found->second >= limits_.links_per_client) {
      return absl::ResourceExhaustedError(fmt::format(
          "runtime {}… of {} has {} links, the most of one client: share channels, or raise the "
          "server's limit (ServerOptions::handshakes.links_per_client)",
          client.ToString().substr(0, kPrintedDigits), ticket.source_name, found->second));
    }
    return absl::OkStatus();
  }

  absl::Status CheckExecutor(const Ticket& ticket, size_t index) const {
    const uint32_t links = ticket.source->by_executor[index];
    if (!ticket.bounded || links < source_links_on_executor_) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        fmt::format("{} has {} links of executor {}, the most of one source address: {}",
                    ticket.source_name, links, index, RaiseLinks(false)));
  }

  std::string RaiseLinks(bool descriptors_bound) const {
    return fmt::format("share channels, or raise ServerOptions::handshakes.links_per_source ({}){}",
                       limits_.links_per_source == 0 ? "0: three quarters of each executor's"
                                                     : std::to_string(limits_.links_per_source),
                       descriptors_bound ? ", or RLIMIT_NOFILE, half of which bounds them" : "");
  }

  // For one more offer.
  absl::Status MakeRoom(const Ticket& ticket) {
    Source& source = *ticket.source;
    const bool source_full =
        ticket.names_source && source.pending.size() >= limits_.offers_per_source;
    if (!source_full && offers_ < limits_.offers) return absl::OkStatus();
    Turns& turns = source_full ? source.turns : turns_;
    Source& most = source_full ? source : MostPending();
    // Otherwise clients would close each other's offers without end, and none would get in: those
    // of one source, and those of sources that have as many.
    const bool takes_from_another =
        &most != &source && most.pending.size() > source.pending.size() + 1;
    if (!takes_from_another && IsYoung(*most.pending.front())) {
      absl::Status refusal = absl::ResourceExhaustedError(fmt::format(
          "{} has {} handshakes without Ready, all of which are young: try again later, "
          "or raise ServerOptions::handshakes.{} ({})",
          source_full ? ticket.source_name : "the server",
          source_full ? source.pending.size() : offers_,
          source_full ? "offers_per_source" : "offers",
          source_full ? limits_.offers_per_source : limits_.offers));
      SetRetryAfter(refusal, turns.Next(now(), kLongestComeAgain));
      return refusal;
    }
    EvictFrom(most.pending, turns,
              source_full ? fmt::format("{} of one source have no Ready, the most by "
                                        "ServerOptions::handshakes.offers_per_source",
                                        source.pending.size())
                          : fmt::format("{} have no Ready, the most by "
                                        "ServerOptions::handshakes.offers",
                                        offers_));
    return absl::OkStatus();
  }

  // The server itself may take long until it answers: that is no fault of the client.
  bool IsYoung(const Ticket& pending) const {
    return !pending.answered_at.has_value() || now() - *pending.answered_at < kYoungOffer;
  }

  // A handshake has ended well.
  void Measure(const Ticket& ticket) {
    const Duration took = ticket.executor->now() - ticket.placed_at;
    ticket.source->turns.Measure(took, ticket.ahead);
    // A client that connects alone may take its time, and must not set the pace of all.
    const size_t most = std::min<size_t>(limits_.offers, limits_.handshakes);
    if (size_t{offers_} * 2 >= most) turns_.Measure(took, ticket.ahead_in_all);
  }

  size_t Choose(const Ticket& ticket, const LinkParameters& offer) {
    switch (offer.executor_choice) {
      case ExecutorChoice::kNumber:
        // A client does not know how many there are.
        return offer.executor_index % executors_.size();
      case ExecutorChoice::kKey:
        return offer.executor_key % executors_.size();
      case ExecutorChoice::kAny:
        break;
    }
    // An executor that takes no more links of this source comes last, even if it has the fewest.
    size_t best = 0;
    const auto rank = [&](size_t i) {
      const bool full =
          ticket.bounded && ticket.source->by_executor[i] >= source_links_on_executor_;
      return std::pair(full, links_[i]);
    };
    for (size_t i = 1; i < links_.size(); ++i) {
      if (rank(i) < rank(best)) best = i;
    }
    return best;
  }

  // The silent handshakes of the source that has most of them, or else the pending ones likewise.
  TicketList& MostWaiting() {
    TicketList& silent = Largest(&State::RankOfSilent).silent;
    return silent.empty() ? MostPending().pending : silent;
  }
  Source& MostPending() {
    return Largest([this](const Source& source) { return RankOfPending(source); });
  }

  // If several sources have the most, the one whose oldest connection has waited longest loses.
  static std::pair<size_t, uint64_t> RankOfSilent(const Source& source) {
    const TicketList& silent = source.silent;
    return {silent.size(), silent.empty() ? 0 : ~silent.front()->number};
  }
  // If several sources have the most, one that would lose an old offer loses. Otherwise the source
  // with the newest unanswered offer loses it, because the other handshakes are nearer to their
  // end. If the oldest made way instead, newcomers would close each handshake before its end, and
  // no client would get in.
  std::tuple<size_t, int, uint64_t> RankOfPending(const Source& source) const {
    const size_t size = source.pending.size();
    if (size == 0) return {0, 0, 0};
    const Ticket& ticket = MakesWay(source.pending);
    if (!IsYoung(ticket)) return {size, 2, ~ticket.number};
    if (!ticket.answered_at.has_value()) return {size, 1, ticket.number};
    return {size, 0, ~ticket.number};
  }

  // Looks at every source, but only for a connection that exceeds a bound.
  template <typename Count>
  Source& Largest(Count count) {
    Source* most = nullptr;
    for (auto& [name, source] : sources_) {
      if (most == nullptr || std::invoke(count, *most) < std::invoke(count, source)) most = &source;
    }
    return *most;
  }

  // Which one of `queue` makes way: the one that waits longest. But of pending ones that are all
  // young it is the newest if it has no answer yet: the others are nearer to their end, and this
  // client can still be told when to come again.
  Ticket& MakesWay(const TicketList& queue) const {
    Ticket& oldest = *queue.front();
    Ticket& newest = *queue.back();
    const bool all_young = oldest.phase == Phase::kPending && IsYoung(oldest);
    return all_young && !newest.answered_at.has_value() ? newest : oldest;
  }

  // Closes a handshake of `queue` to keep a bound. If the server has not answered it, its client
  // gets one of the bound's `turns`.
  void EvictFrom(TicketList& queue, Turns& turns, const std::string& why) {
    if (queue.empty()) return;
    Ticket& ticket = MakesWay(queue);
    const bool silent = ticket.phase == Phase::kSilent;
    const bool answered = ticket.answered_at.has_value();
    ++(silent ? stats_.evicted_silent : stats_.evicted_pending);
    VERBENA_LOG_THROTTLED(
        log_, kWarning, now(),
        fmt::format("a handshake of {} is closed to make room, {}: {} ({} so far)",
                    ticket.source_name,
                    silent     ? "which sent nothing"
                    : answered ? "whose client never said Ready"
                               : "which has no answer yet",
                    why, stats_.evicted_silent + stats_.evicted_pending),
        {{"peer", ticket.source_name}});
    if (!answered) PutOff(ticket, turns, silent, why);
    Drop(ticket);
    ticket.phase = Phase::kEvicted;
    // One that waits for its answer hears of it then.
    if (!silent && !answered) return;
    ticket.executor->PostFunction([ticket = tickets_[&ticket], silent] {
      if (!silent && ticket->stream != nullptr) ticket->stream->Close();
      if (silent && ticket->hearing != nullptr) ticket->hearing->Request();
    });
  }

  // Tells the client when to come again. It may be a correct one: of a storm, or slower than a
  // flood.
  void PutOff(Ticket& ticket, Turns& turns, bool silent, const std::string& why) {
    ticket.refusal = absl::ResourceExhaustedError(
        fmt::format("closed to make room for others before an answer: {}; try again later", why));
    SetRetryAfter(ticket.refusal,
                  turns.Next(now(), silent ? kLatestSilentTurn : kLongestComeAgain));
  }

  // Takes it off its queue.
  void Drop(Ticket& ticket) {
    const bool silent = ticket.phase == Phase::kSilent;
    (silent ? ticket.source->silent : ticket.source->pending).erase(ticket.place);
    if (!silent) {
      --offers_;
      LeaveClient(ticket);
    }
    --under_way_;
  }

  // The ticket's client has one link less.
  void LeaveClient(const Ticket& ticket) {
    auto client = clients_.find(KeyOf(ticket, ticket.client));
    if (--client->second == 0) clients_.erase(client);
  }

  const HandshakeLimits limits_;
  const uint32_t handshakes_;
  const std::vector<Executor*> executors_;
  uint32_t source_links_ = 0;  // of one source, in all and on one executor
  uint32_t source_links_on_executor_ = 0;
  bool descriptors_bound_ = false;  // source_links_, rather than the executors' links
  ThrottledLog log_{LogComponent::kServer, {.lines = 2}};
  ThrottledLog claims_log_{LogComponent::kServer,
                           {.lines = 1, .interval = std::chrono::minutes(10)}};
  mutable std::mutex mutex_;
  // Under mutex_. Entries of these maps stay at their addresses.
  absl::node_hash_map<std::string, Source> sources_;
  absl::node_hash_map<ClientKey, uint32_t> clients_;  // links, pending and open
  absl::node_hash_map<Ticket*, std::shared_ptr<Ticket>> tickets_;
  std::vector<uint32_t> links_;  // by executor
  uint32_t under_way_ = 0;
  uint32_t offers_ = 0;
  // The turns of clients that the bounds in all refuse. No Source can keep these: it may have one
  // client, and is erased with it.
  Turns turns_;
  uint64_t entered_ = 0;  // so far
  HandshakeStats stats_;
};

// A connection that counts until it is destroyed.
class HandshakeGate::Stream final : public MessageStream {
 public:
  Stream(std::unique_ptr<MessageStream> stream, std::shared_ptr<State> state)
      : stream_(std::move(stream)),
        state_(std::move(state)),
        ticket_(std::make_shared<struct Ticket>()) {
    ticket_->source_name = stream_->source();
    ticket_->stream = stream_.get();
    state_->Enter(ticket_, *stream_);
  }
  ~Stream() override {
    ticket_->stream = nullptr;
    state_->Leave(*ticket_);
  }

  VERBENA_CORO_WRAPPER Task<absl::Status> Send(std::string message) override {
    const absl::Status refusal = state_->Answer(*ticket_);
    if (refusal.ok()) return stream_->Send(std::move(message));
    return Refuse(stream_->Send(EncodeRefusal(refusal)), refusal);
  }
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> Receive() override {
    Task<absl::StatusOr<std::string>> receive = CountReceive(stream_->Receive(), state_, ticket_);
    if (std::exchange(heard_, true)) return receive;
    return HearHello(std::move(receive), state_, ticket_);
  }
  void Close() override { stream_->Close(); }
  const std::string& peer() const override { return stream_->peer(); }
  const std::string& source() const override { return stream_->source(); }
  bool same_host() const override { return stream_->same_host(); }
  bool names_source() const override { return stream_->names_source(); }
  std::string own_address() const override { return stream_->own_address(); }

  struct Ticket& ticket() const { return *ticket_; }

 private:
  // Its client hears the refusal, and so does the handshake that wanted to answer.
  static Task<absl::Status> Refuse(Task<absl::Status> send, absl::Status refusal) {
    VERBENA_CO_RETURN_IF_ERROR(co_await std::move(send));
    co_return refusal;
  }

  // The first message, or the refusal if the gate evicts the connection meanwhile.
  static Task<absl::StatusOr<std::string>> HearHello(Task<absl::StatusOr<std::string>> receive,
                                                     std::shared_ptr<State> state,
                                                     std::shared_ptr<struct Ticket> ticket) {
    CancelScope scope((co_await CurrentContext()).cancel);
    ticket->hearing = &scope;
    const absl::Cleanup heard = [&ticket] { ticket->hearing = nullptr; };
    // The gate may have evicted the handshake before anybody listened.
    if (!state->RefusalOf(*ticket).ok()) scope.Request();
    absl::StatusOr<std::string> hello = co_await std::move(receive).In(&scope);
    VERBENA_CO_RETURN_IF_ERROR(state->RefusalOf(*ticket));
    co_return hello;
  }

  static Task<absl::StatusOr<std::string>> CountReceive(Task<absl::StatusOr<std::string>> receive,
                                                        std::shared_ptr<State> state,
                                                        std::shared_ptr<struct Ticket> ticket) {
    absl::StatusOr<std::string> message = co_await std::move(receive);
    // Pending is the only phase that this changes: the message is its Ready.
    if (message.ok()) state->Open(*ticket);
    co_return message;
  }

  const std::unique_ptr<MessageStream> stream_;
  const std::shared_ptr<State> state_;
  const std::shared_ptr<struct Ticket> ticket_;
  bool heard_ = false;  // a first Receive() was begun
};

HandshakeGate::HandshakeGate(const HandshakeLimits& limits, std::vector<Executor*> executors,
                             uint32_t links_per_executor)
    : state_(std::make_shared<State>(limits, std::move(executors), links_per_executor)) {}
HandshakeGate::~HandshakeGate() = default;

std::unique_ptr<MessageStream> HandshakeGate::Admit(std::unique_ptr<MessageStream> stream) {
  return std::make_unique<Stream>(std::move(stream), state_);
}

absl::StatusOr<size_t> HandshakeGate::Place(MessageStream& stream, const LinkParameters& offer) {
  return state_->Place(static_cast<Stream&>(stream).ticket(), stream.peer(), offer);
}

HandshakeStats HandshakeGate::stats() const { return state_->stats(); }

}  // namespace verbena::internal
