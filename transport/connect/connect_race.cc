#include "verbena/transport/connect/connect_race.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal {

using boost::asio::ip::tcp;
using boost::system::error_code;

Duration ConnectRace::HeadStart(Duration patience, size_t addresses) {
  const auto shares = static_cast<Duration::rep>(std::max<size_t>(addresses, 1));
  return std::min<Duration>(kHeadStart, patience / shares);
}

ConnectRace::ConnectRace(boost::asio::io_context& context, std::vector<tcp::endpoint> addresses,
                         Duration patience)
    : context_(context),
      addresses_(std::move(addresses)),
      head_start_(HeadStart(patience, addresses_.size())),
      timer_(context) {}

void ConnectRace::Start(std::string what, Done done) {
  what_ = std::move(what);
  done_ = std::move(done);
  BeginNext();
}

void ConnectRace::Close() {
  done_ = nullptr;
  timer_.cancel();
  error_code ignored;
  for (const Socket& each : connecting_) each->close(ignored);
  connecting_.clear();
}

void ConnectRace::BeginNext() {
  while (next_ < addresses_.size()) {
    const tcp::endpoint& address = addresses_[next_++];
    if (connecting_.size() == kMostAtOnce) GiveUpOldest();
    Socket socket = Open(address);
    if (socket == nullptr) continue;
    connecting_.push_back(socket);
    socket->async_connect(address,
                          [self = shared_from_this(), socket, &address](const error_code& error) {
                            self->OnConnected(socket, address, error);
                          });
    return StartTimer();
  }
  if (connecting_.empty()) End(SocketStatus(error_, what_));
}

ConnectRace::Socket ConnectRace::Open(const tcp::endpoint& address) {
  UniqueFd fd = OpenTcpSocket(address.protocol().family());
  if (!fd) {
    error_ = errno;
    return nullptr;
  }
  DetectDeadHost(fd.get());
  auto socket = std::make_shared<tcp::socket>(context_);
  error_code error;
  socket->assign(address.protocol(), fd.get(), error);
  if (error) {
    error_ = error.value();
    return nullptr;
  }
  fd.Release();
  return socket;
}

void ConnectRace::OnConnected(const Socket& socket, const tcp::endpoint& address,
                              const error_code& error) {
  // Somebody has given this socket up meanwhile.
  if (std::erase(connecting_, socket) == 0) return;
  if (!error) return End(Winner{.socket = std::move(*socket), .address = address});
  error_ = error.value();
  error_code ignored;
  socket->close(ignored);
  BeginNext();
}

void ConnectRace::GiveUpOldest() {
  error_ = ETIMEDOUT;
  error_code ignored;
  connecting_.front()->close(ignored);
  connecting_.erase(connecting_.begin());
}

void ConnectRace::StartTimer() {
  if (next_ == addresses_.size()) return;
  timer_.expires_after(head_start_);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && self->done_ != nullptr) self->BeginNext();
  });
}

void ConnectRace::End(absl::StatusOr<Winner> result) {
  // `done` may drop the owner's reference, which may be the last other one.
  const auto self = shared_from_this();
  const Done done = std::exchange(done_, nullptr);
  Close();
  done(std::move(result));
}

}  // namespace verbena::internal
