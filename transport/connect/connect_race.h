// ConnectRace: connects to the first of a host's addresses that answers.
//
// Each address begins kHeadStart after the one before, or as soon as one has failed, and the others
// go on beside it (Happy Eyeballs, RFC 8305): one that drops packets hides no other. At most
// kMostAtOnce of them have a socket; a further one takes the place of the oldest.
//
// Shared by its owner and its handlers, all on the thread that runs the io_context. The owner must
// close it before that thread can end.

#ifndef VERBENA_TRANSPORT_CONNECT_CONNECT_RACE_H_
#define VERBENA_TRANSPORT_CONNECT_CONNECT_RACE_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

class VERBENA_EXPORT ConnectRace final : public std::enable_shared_from_this<ConnectRace> {
 public:
  struct Winner {
    boost::asio::ip::tcp::socket socket;  // connected
    boost::asio::ip::tcp::endpoint address;
  };
  using Done = std::function<void(absl::StatusOr<Winner>)>;

  static constexpr Duration kHeadStart = std::chrono::milliseconds(250);  // (start)
  static constexpr size_t kMostAtOnce = 8;                                // (start)

  // How long each of so many addresses is ahead of the next: the last one gets its share of a short
  // `patience`, too.
  static Duration HeadStart(Duration patience, size_t addresses);

  // `patience`: how long the owner waits for all of it.
  ConnectRace(boost::asio::io_context& context,
              std::vector<boost::asio::ip::tcp::endpoint> addresses, Duration patience);

  // Call it once. Calls `done` once, perhaps before it returns, unless Close() comes first. A
  // failure is that of the address which failed last, and begins with `what`.
  void Start(std::string what, Done done);
  // Closes all sockets that connect: the kernel would go on for minutes.
  void Close();

 private:
  using Socket = std::shared_ptr<boost::asio::ip::tcp::socket>;

  void BeginNext();
  // nullptr if there is no socket to be had.
  Socket Open(const boost::asio::ip::tcp::endpoint& address);
  void OnConnected(const Socket& socket, const boost::asio::ip::tcp::endpoint& address,
                   const boost::system::error_code& error);
  void GiveUpOldest();
  void StartTimer();
  void End(absl::StatusOr<Winner> result);

  boost::asio::io_context& context_;
  const std::vector<boost::asio::ip::tcp::endpoint> addresses_;
  const Duration head_start_;
  std::string what_;
  Done done_;  // null once it has ended
  size_t next_ = 0;
  std::vector<Socket> connecting_;  // the oldest first
  int error_ = EADDRNOTAVAIL;       // of the last failure
  boost::asio::steady_timer timer_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_CONNECT_RACE_H_
