// Connecting queue pairs over librdmacm: RdmaCm, the QpConnector of one port, and its parts.
//
// CmChannel is the event channel with its thread, CmConnection one queue pair's way through
// rdma_cm, and TokenTable has the objects that tokens were given out for. Whoever opened the device
// owns the RdmaCm. Its calls and awaits belong to executors, its events to the channel's thread.
// The table bounds the connections that wait.

#ifndef VERBENA_TRANSPORT_CONNECT_RDMA_CM_H_
#define VERBENA_TRANSPORT_CONNECT_RDMA_CM_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/mailbox.h"

namespace verbena::internal {

// The choice of the IP address of this host that stands for a port of an RDMA device: rdma_cm names
// devices by addresses.
//
// The choice is a pure function of the interfaces' addresses and the port's GID; ListAddresses()
// reads them from the kernel. Only rdma_bind_addr tells whether the port really has the address.

struct HostAddress {
  std::string interface;
  std::vector<uint8_t> hardware;  // the interface's; empty if it has none
  IpAddress ip{};
};

// Lists the addresses of the interfaces that are up, in the kernel's order; neither loopback nor
// link-local.
std::vector<HostAddress> ListAddresses();

// Returns the addresses that may be the port's: first the GID itself (RoCE), then those of the
// interface whose hardware address the GID was made of (iWARP, IPoIB). If there is none, returns
// all.
std::vector<HostAddress> RankAddresses(const std::vector<HostAddress>& all, LinkKind kind,
                                       const ibv_gid& gid);

// The content of an rdma_cm_event.
struct CmEvent {
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_ERROR;
  int status = 0;
  rdma_cm_id* id = nullptr;  // a connection request's new id is the handler's to destroy
  std::string private_data = {};
  uint32_t qp_number = 0;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
};

// Hears the events of one rdma_cm_id, or the requests that a listening id gets. Lives until the id
// is destroyed.
class CmEventListener {
 public:
  // On the channel's thread.
  virtual void OnCmEvent(const CmEvent& event) = 0;

 protected:
  ~CmEventListener() = default;
};

// CmChannel: the event channel of rdma_cm, and the thread that reads it.
//
// The thread copies each event, acknowledges it at once (destroying an id waits for that), and
// hands it to the handler of its id. A connection request goes to the listener's handler. All ids
// of the channel share the thread. Stop() ends the thread after the work that was posted; from then
// on Post() refuses.
class CmChannel final : public IoObject, public std::enable_shared_from_this<CmChannel> {
 public:
  // UNAVAILABLE if the kernel has no rdma_cm; the message says what is missing.
  static absl::StatusOr<std::shared_ptr<CmChannel>> Open();
  ~CmChannel() override;

  // From any thread. `handler` must live until the id is destroyed. An id may have events as soon
  // as it is bound, because the device can be removed.
  absl::StatusOr<rdma_cm_id*> CreateId(CmEventListener& handler);
  // From any thread. Destroys the id on the channel's thread, where no event of it is being
  // handled; here and now if Stop() has returned.
  void DestroyId(rdma_cm_id* id);

  // Runs `function` on the thread. False, and it is dropped, once Stop() has been called.
  template <typename Function>
  bool Post(Function function) {
    return io_->Post(std::move(function));
  }
  void Stop() { io_->Stop(); }
  // For timers, none of which may run once the channel is stopped.
  boost::asio::io_context& context() { return io_->context(); }

 private:
  CmChannel(std::shared_ptr<IoThread> io, rdma_event_channel* channel);
  void CloseOnThread() override;
  void ReadWhenReady();
  // False when the channel is broken.
  bool ReadAll();

  const std::shared_ptr<IoThread> io_;
  rdma_event_channel* const channel_;
  boost::asio::posix::stream_descriptor descriptor_;
};

// The private data of rdma_cm's messages: what a link's two sides say inside them (proto/WIRE.md).
//
// InfiniBand and RoCE pad private data with zeros to a length of their own, iWARP does not. So
// readers take the bytes that they know, and ignore the rest. Pure functions over any bytes.

// Bytes of our private data. InfiniBand leaves 56 in a request, and 148 in a rejection.
inline constexpr size_t kConnectDataBytes = 16;
inline constexpr size_t kRejectDataBytes = 8;

// The private data of a connection request: the token that the server gave out for it.
std::string EncodeConnectData(uint64_t token);
// nullopt if the bytes are not ours, or of another version.
std::optional<uint64_t> ParseConnectData(std::string_view bytes);

// The reason in a rejection's private data. The values are those of the wire; a reader takes any
// other for kOther.
enum class RejectReason : uint8_t {
  kOther = 0,
  kMalformed = 1,     // the request's private data is not what proto/WIRE.md says
  kUnknownToken = 2,  // never given out, used before, or out of time
  kWrongQueuePair = 3,
  kGone = 4,  // the server no longer waits for the request
};

const char* RejectReasonText(RejectReason reason);

std::string EncodeRejectData(RejectReason reason);
// nullopt if the bytes are not ours.
std::optional<RejectReason> ParseRejectData(std::string_view bytes);

// RdmaCmStatus: a failure of rdma_cm, as one Status with one clear line.
//
// rdma_cm reports a failure as an event and a number. For REJECTED on InfiniBand and RoCE, the
// number is the reason of the CM's REJ message (InfiniBand specification, volume 1, 12.6.7.2);
// otherwise it is a negative errno. This is the only place that reads these numbers. A pure
// function, from any thread.
//
//   RdmaCmStatus(RDMA_CM_EVENT_REJECTED, 8, "", "rdma_cm to 10.0.0.2:4000")
//   -> UNAVAILABLE: rdma_cm to 10.0.0.2:4000: nobody listens there
//      (RDMA_CM_EVENT_REJECTED, status 8)
//
// `event` is a failure. `private_data` came with it, as the peer sent it. `what` says what was
// tried, and with whom.
absl::Status RdmaCmStatus(rdma_cm_event_type event, int status, std::string_view private_data,
                          const std::string& what);

// A call of librdmacm that failed with `error`, a positive errno. `call` is its name.
absl::Status RdmaCmCallStatus(const char* call, int error, const std::string& what);

// TokenTable<T>: objects that wait for their token to be shown; each is taken at most once.
//
// The table shares the ownership of its objects. Safe from any thread. Its bound is the only limit
// on how many objects wait. A token expires when its object's owner removes it.
//
//   TokenTable<CmConnection> waiting(1024);
//   if (!waiting.Add(token, connection)) return absl::ResourceExhaustedError(…);
//   std::shared_ptr<CmConnection> found = waiting.Take(token);  // nullptr: unknown or used
template <typename T>
class TokenTable {
 public:
  explicit TokenTable(size_t limit) : limit_(limit) {}

  // False when the table is full, or the token is in it.
  bool Add(uint64_t token, const std::shared_ptr<T>& waiting) {
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= limit_) return false;
    return waiting_.try_emplace(token, waiting).second;
  }

  std::shared_ptr<T> Take(uint64_t token) {
    std::lock_guard lock(mutex_);
    const auto found = waiting_.find(token);
    if (found == waiting_.end()) return nullptr;
    std::shared_ptr<T> taken = std::move(found->second);
    waiting_.erase(found);
    return taken;
  }

  void Remove(uint64_t token) { Take(token); }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  const size_t limit_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<T>> waiting_;  // under mutex_
};

// Refuses a request, and destroys its id.
void RejectCmRequest(rdma_cm_id* id, RejectReason reason);

// CmConnection: one queue pair's way through rdma_cm, of either side.
//
// Shared by the channel's thread, which hears its events, and by the executor, which awaits its
// steps. The objects that Share() returned hold the connection. When the last of them is gone, the
// channel's thread destroys the id. A server's connection has no id until a request shows its
// token.
class CmConnection final : public QpConnection,
                           public CmEventListener,
                           public std::enable_shared_from_this<CmConnection> {
 public:
  using Waiting = TokenTable<CmConnection>;

  // `device` is the only one that it may run over; `peer` is for messages.
  CmConnection(std::shared_ptr<CmChannel> channel, std::string device, ConnectableQp qp,
               const std::string& peer);
  ~CmConnection() override;

  // Client: begins, from an address of this host. The outcome comes by AwaitPeer().
  // `traffic_class` is as in RdmaCmOptions.
  void Start(const IpAddress& from, const RdmaCmService& to, uint8_t traffic_class);
  // Server: waits for a request that shows `token`, which is in `waiting`.
  void ExpectToken(std::shared_ptr<Waiting> waiting, uint64_t token);
  // Server, on the channel's thread: takes the request that showed the token, and its id.
  void Adopt(const CmEvent& request);

  static std::shared_ptr<QpConnection> Share(std::shared_ptr<CmConnection> connection);

  Task<absl::Status> AwaitPeer() override;
  absl::Status FillIn(ibv_qp_attr& attributes, int& mask) override;
  bool client_sends_first() const override { return iwarp_; }
  absl::Status Confirm() override;
  Task<absl::Status> AwaitEstablished() override;

  void OnCmEvent(const CmEvent& event) override;

 private:
  enum class Step : uint8_t { kPeer, kEstablished };

  // All of these on the channel's thread.
  void Resolve(const IpAddress& from, const RdmaCmService& to, uint8_t traffic_class);
  void ResolveRoute();
  void Request();
  void LimitAnswer();
  void End(const absl::Status& why);
  // Nobody holds the connection any more, or the connection has ended.
  void Destroy();

  void MarkEstablished();
  rdma_conn_param Parameters(const std::string& private_data) const;
  static Task<absl::Status> Await(std::shared_ptr<Mailbox<Step>> steps);

  const std::shared_ptr<CmChannel> channel_;
  const std::string device_;
  const ConnectableQp qp_;
  const std::string what_;  // "rdma_cm to 10.0.0.2:4000"
  const std::shared_ptr<Mailbox<Step>> steps_ = std::make_shared<Mailbox<Step>>();

  // For a server's connection.
  std::shared_ptr<Waiting> waiting_;
  uint64_t token_ = 0;
  bool accepted_ = false;

  // Set on the channel's thread, before the step that tells of it.
  rdma_cm_id* id_ = nullptr;
  bool iwarp_ = false;
  uint8_t reads_served_;
  uint8_t reads_started_;
  // The channel's thread only.
  boost::asio::steady_timer answer_limit_;
  bool ended_ = false;

  std::mutex mutex_;
  bool established_ = false;  // under mutex_
  bool held_ = true;          // under mutex_; if false, on_end is not called any more
};

// Connections that wait for their client at once; one more is refused.
inline constexpr size_t kMaxExpectedConnections = 1024;

struct RdmaCmOptions {
  std::string device;  // "siw0"
  uint8_t port = 1;
  LinkKind kind = LinkKind::kRoce;
  ibv_gid gid = {};           // the port's; its IP addresses are found by it
  uint8_t traffic_class = 0;  // of all connections, RDMA_OPTION_ID_TOS; 0: the kernel's choice
};

// RdmaCm: the QpConnector of one port of an RDMA device, over librdmacm.
//
// RdmaCm connects queue pairs only. The handshake stays on the bootstrap's stream, since a
// connection request carries 56 bytes at most, and since the end of the stream tells that a peer
// died. Any bootstrap will do.
//
// Queue pairs are made by their Device, on a context of its own, and rdma_cm is told their numbers:
// the kernel finds them by these on all kinds of devices. (Only rdma_create_qp demands the context
// of rdma_get_devices(), which opens every device of the host and keeps all of them open.)
//
// Owned by whoever opened the device, and outlives every connection. It listens on a port of its
// own choice from the first Expect() on, so that a mere client opens none. If the port loses that
// address, the next Expect() listens anew. Events are read on a thread of its own. siw's
// rdma_connect waits on that thread for the peer's TCP, so one host that swallows packets delays
// the other connections of a siw device.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<RdmaCm> cm, RdmaCm::Start({.device = "siw0", …}));
class RdmaCm final : public QpConnector, private CmEventListener {
 public:
  // UNAVAILABLE if the kernel has no rdma_cm; FAILED_PRECONDITION when no IP address of this
  // host is on the port.
  static absl::StatusOr<std::unique_ptr<RdmaCm>> Start(RdmaCmOptions options);
  ~RdmaCm() override;

  absl::StatusOr<std::shared_ptr<QpConnection>> Expect(ConnectableQp qp,
                                                       RdmaCmService& service) override;
  absl::StatusOr<std::shared_ptr<QpConnection>> Connect(ConnectableQp qp,
                                                        const RdmaCmService& service) override;

  // FAILED_PRECONDITION when no IP address of this host is on the port.
  absl::Status MoveTo(const ibv_gid& gid) override;

  // The port's addresses. Servers give out the first.
  std::vector<IpAddress> addresses() const;

 private:
  RdmaCm(RdmaCmOptions options, std::shared_ptr<CmChannel> channel);

  absl::StatusOr<std::vector<IpAddress>> FindAddresses(const ibv_gid& gid);
  bool IsOnPort(const IpAddress& ip);
  // Listens, unless it does already. Returns the address, without a token.
  absl::StatusOr<RdmaCmService> Listen();
  absl::StatusOr<uint16_t> ListenOnce(const IpAddress& ip);
  void OnCmEvent(const CmEvent& event) override;
  void OnRequest(const CmEvent& request);

  const RdmaCmOptions options_;
  const std::shared_ptr<CmChannel> channel_;
  const std::shared_ptr<CmConnection::Waiting> waiting_;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<IpAddress> addresses_;
  rdma_cm_id* listener_ = nullptr;  // at the first of addresses_

  ThrottledLog refusals_{LogComponent::kConnect, {}};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_RDMA_CM_H_
