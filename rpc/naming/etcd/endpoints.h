// EtcdEndpoints: the members of one etcd, and which of them to ask first.

#ifndef VERBENA_RPC_NAMING_ETCD_ENDPOINTS_H_
#define VERBENA_RPC_NAMING_ETCD_ENDPOINTS_H_

#include <atomic>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/host_port.h"

namespace verbena::internal {

// Shared by a wire and its calls; any thread.
class EtcdEndpoints {
 public:
  // `tls` is nullptr for connections in the clear. At least one host.
  EtcdEndpoints(std::vector<HostPort> hosts, Duration timeout,
                std::unique_ptr<boost::asio::ssl::context> tls)
      : hosts_(std::move(hosts)), timeout_(timeout), tls_(std::move(tls)) {}

  size_t size() const { return hosts_.size(); }
  const HostPort& host(size_t index) const { return hosts_[index]; }
  Duration timeout() const { return timeout_; }
  // For handshakes, which leave it as it is.
  boost::asio::ssl::context* tls() const { return tls_.get(); }

  size_t first() const { return first_.load(std::memory_order_relaxed); }
  void Prefer(size_t index) { first_.store(index, std::memory_order_relaxed); }
  // Unless another one is preferred by now.
  void Avoid(size_t index) {
    first_.compare_exchange_strong(index, (index + 1) % size(), std::memory_order_relaxed);
  }

 private:
  const std::vector<HostPort> hosts_;
  const Duration timeout_;
  const std::unique_ptr<boost::asio::ssl::context> tls_;
  std::atomic<size_t> first_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_ENDPOINTS_H_
