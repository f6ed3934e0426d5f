#include "verbena/transport/connect/local_bootstrap.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/mailbox.h"

namespace verbena {

namespace internal {

using Backlog = Mailbox<std::unique_ptr<MessageStream>>;

// Which names are taken, and by whose backlog. Safe from any thread.
class LocalNames {
 public:
  // Takes a name, and returns it. FAILED_PRECONDITION if the name is in use.
  absl::StatusOr<std::string> Take(const std::string& wanted, std::shared_ptr<Backlog> backlog) {
    std::lock_guard lock(mutex_);
    std::string name = wanted.ends_with(":0") ? NextFree(wanted) : wanted;
    if (!listeners_.emplace(name, std::move(backlog)).second) {
      return absl::FailedPreconditionError(
          fmt::format("{} is in use: choose another name or stop the other server", name));
    }
    return name;
  }

  void Release(const std::string& name) {
    std::lock_guard lock(mutex_);
    listeners_.erase(name);
  }

  std::shared_ptr<Backlog> Find(const std::string& name) {
    std::lock_guard lock(mutex_);
    auto found = listeners_.find(name);
    return found == listeners_.end() ? nullptr : found->second;
  }

 private:
  // The name with the next number in place of its 0; one that somebody chose by name is left out.
  std::string NextFree(const std::string& wanted) {
    for (;;) {
      std::string name = fmt::format("{}{}", wanted.substr(0, wanted.size() - 1), ++last_number_);
      if (!listeners_.contains(name)) return name;
    }
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Backlog>> listeners_;
  uint64_t last_number_ = 0;
};

}  // namespace internal

namespace {

using internal::Backlog;
using StreamOr = absl::StatusOr<std::unique_ptr<MessageStream>>;

// One direction of a stream.
struct Pipe {
  // Permission to send one message; there are LocalNetwork::kStreamMessages of them.
  struct Slot {};

  Pipe() {
    for (size_t i = 0; i < LocalNetwork::kStreamMessages; ++i) slots->Push(Slot{});
  }

  const std::shared_ptr<internal::Mailbox<Slot>> slots =
      std::make_shared<internal::Mailbox<Slot>>();
  const std::shared_ptr<internal::Mailbox<std::string>> messages =
      std::make_shared<internal::Mailbox<std::string>>();
};

// The coroutines hold what they use, so that the stream may go before a Task that nobody awaited.
Task<absl::Status> SendOn(std::shared_ptr<Pipe> pipe, std::string message) {
  VERBENA_CO_RETURN_IF_ERROR(CheckBootstrapMessage(message.size()));
  VERBENA_CO_RETURN_IF_ERROR((co_await pipe->slots->Pop()).status());
  pipe->messages->Push(std::move(message));
  co_return absl::OkStatus();
}

Task<absl::StatusOr<std::string>> ReceiveOn(std::shared_ptr<Pipe> pipe) {
  absl::StatusOr<std::string> message = co_await pipe->messages->Pop();
  if (message.ok()) pipe->slots->Push(Pipe::Slot{});
  co_return message;
}

Task<StreamOr> AcceptFrom(std::shared_ptr<Backlog> backlog) { co_return co_await backlog->Pop(); }

class LocalStream final : public MessageStream {
 public:
  LocalStream(std::string peer, std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out)
      : peer_(std::move(peer)), in_(std::move(in)), out_(std::move(out)) {}
  ~LocalStream() override { Close(); }

  VERBENA_CORO_WRAPPER Task<absl::Status> Send(std::string message) override {
    return SendOn(out_, std::move(message));
  }
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> Receive() override {
    return ReceiveOn(in_);
  }

  void Close() override {
    if (std::exchange(closed_, true)) return;
    // The peer still receives what was sent, and can send no more.
    out_->messages->Finish(absl::UnavailableError("the peer has closed the connection"));
    in_->slots->Abort(absl::UnavailableError("the peer has closed the connection"));
    const absl::Status closed = absl::CancelledError("the stream was closed on this side");
    in_->messages->Abort(closed);
    out_->slots->Abort(closed);
  }

  const std::string& peer() const override { return peer_; }
  bool same_host() const override { return true; }

 private:
  const std::string peer_;
  const std::shared_ptr<Pipe> in_;
  const std::shared_ptr<Pipe> out_;
  bool closed_ = false;
};

Task<StreamOr> ConnectTo(std::shared_ptr<internal::LocalNames> names, std::string name,
                         std::string target) {
  const std::shared_ptr<Backlog> backlog = names->Find(target);
  if (backlog == nullptr) {
    co_return absl::UnavailableError(fmt::format("nobody listens at {}", target));
  }
  auto there = std::make_shared<Pipe>();
  auto back = std::make_shared<Pipe>();
  auto theirs = std::make_unique<LocalStream>(std::move(name), there, back);
  auto ours = std::make_unique<LocalStream>(target, back, there);
  if (!backlog->Push(std::move(theirs), LocalNetwork::kBacklog)) {
    co_return absl::UnavailableError(
        fmt::format("{} accepts no connection: it closes, or {} others wait already", target,
                    LocalNetwork::kBacklog));
  }
  co_return std::unique_ptr<MessageStream>(std::move(ours));
}

class LocalListener final : public MessageListener {
 public:
  LocalListener(std::shared_ptr<internal::LocalNames> names, std::string address,
                std::shared_ptr<Backlog> backlog)
      : names_(std::move(names)), address_(std::move(address)), backlog_(std::move(backlog)) {}
  ~LocalListener() override { Close(); }

  VERBENA_CORO_WRAPPER Task<StreamOr> Accept() override { return AcceptFrom(backlog_); }

  void Close() override {
    if (std::exchange(closed_, true)) return;
    names_->Release(address_);
    backlog_->Abort(absl::CancelledError("the listener was closed"));
  }

  const std::string& address() const override { return address_; }

 private:
  const std::shared_ptr<internal::LocalNames> names_;
  const std::string address_;
  const std::shared_ptr<Backlog> backlog_;
  bool closed_ = false;
};

}  // namespace

LocalNetwork::LocalNetwork() : names_(std::make_shared<internal::LocalNames>()) {}
LocalNetwork::~LocalNetwork() = default;

LocalBootstrap::LocalBootstrap(LocalNetwork& network, std::string name)
    : names_(network.names_), name_(std::move(name)) {}
LocalBootstrap::~LocalBootstrap() = default;

VERBENA_CORO_WRAPPER Task<StreamOr> LocalBootstrap::Connect(std::string target) {
  return ConnectTo(names_, name_, std::move(target));
}

absl::StatusOr<std::unique_ptr<MessageListener>> LocalBootstrap::Listen(
    const std::string& address) {
  if (address.empty()) return absl::InvalidArgumentError("a listener needs a name, not \"\"");
  auto backlog = std::make_shared<Backlog>();
  VERBENA_ASSIGN_OR_RETURN(std::string name, names_->Take(address, backlog));
  return std::make_unique<LocalListener>(names_, std::move(name), std::move(backlog));
}

}  // namespace verbena
