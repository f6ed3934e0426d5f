// CmAcceptor: the listening socket of an id, and the connections whose request is not there yet.
//
// Strangers may connect. So each connection has a time limit for its request, and their number is
// bounded: for one more, the oldest of the source that has most of them makes way (TcpSilent). So
// whoever opens many pushes out its own. All methods run under CmLoop's lock.

#ifndef VERBENA_TRANSPORT_PRELOAD_RDMA_CM_ACCEPTOR_H_
#define VERBENA_TRANSPORT_PRELOAD_RDMA_CM_ACCEPTOR_H_

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>

#include "verbena/transport/preload/rdma_cm_loop.h"
#include "verbena/transport/preload/rdma_cm_message.h"
#include "verbena/transport/preload/rdma_cm_stream.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/tcp_silent.h"

namespace verbena::internal::preload {

class CmRequestListener {
 public:
  // A connection's request. It takes `stream`, or leaves it to be closed; returns whether it did.
  virtual bool OnRequest(std::unique_ptr<CmStream>& stream, const CmMessage& message) = 0;

 protected:
  ~CmRequestListener() = default;
};

class CmAcceptor final : private CmReadyListener {
 public:
  // Connections without a request yet (start).
  static constexpr size_t kMostSilent = 128;
  static constexpr std::chrono::milliseconds kRequestTime = std::chrono::seconds(10);

  // Takes a socket that listens and does not block.
  CmAcceptor(soft::UniqueFd socket, CmRequestListener& listener,
             std::chrono::milliseconds request_time = kRequestTime);
  ~CmAcceptor();
  CmAcceptor(const CmAcceptor&) = delete;
  CmAcceptor& operator=(const CmAcceptor&) = delete;

 private:
  // A connection that has not sent its request.
  class Silent final : public CmStreamOwner {
   public:
    Silent(CmAcceptor& acceptor, uint64_t id, soft::UniqueFd socket);

   private:
    void OnStreamConnected() override {}
    void OnStreamMessage(const CmMessage& message) override;
    void OnStreamLost(int error) override;

    CmAcceptor& acceptor_;
    const uint64_t id_;
    std::unique_ptr<CmStream> stream_;
  };

  void OnReady(uint32_t events) override;
  void OnDeadline() override;
  void MakeRoomFor(const ibv_gid& newcomer);

  const soft::UniqueFd socket_;
  CmRequestListener& listener_;
  const std::chrono::milliseconds request_time_;
  uint64_t watch_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Silent> silent_;  // by id
  // Has those of silent_, and some that have gone since.
  soft::TcpSilent sources_;
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_RDMA_CM_ACCEPTOR_H_
