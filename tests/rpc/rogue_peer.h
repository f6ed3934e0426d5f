// RoguePeer: a peer that shakes hands correctly and then sends whatever bytes a test wants.
//
// The peer drives verbs by hand over a device of its own, so no link of Verbena stands between the
// test and the wire. For one thread, which must not be an executor's: calls block.

#ifndef VERBENA_TESTS_RPC_ROGUE_PEER_H_
#define VERBENA_TESTS_RPC_ROGUE_PEER_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/receives.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/memory/arena.h"

namespace verbena::internal {

// The ids of the services that tests call, in the order in which a server of them numbers them.
std::vector<uint64_t> TestMethods();

// The methods of the server that a rogue of this process connected to last, as its handshake told;
// before, those of Testing.
class RogueMethods {
 public:
  static void Set(std::vector<uint64_t> ids) { ids_ = std::move(ids); }
  // A number that no method has, if the server does not have this one.
  static uint16_t NumberOf(const char* method) {
    const auto found = std::find(ids_.begin(), ids_.end(), MethodId(method));
    return found == ids_.end() ? 0xffff : static_cast<uint16_t>(found - ids_.begin() + 1);
  }

 private:
  inline static std::vector<uint64_t> ids_ = TestMethods();
};

struct RogueFrame {
  FrameHeader header = {};
  std::string body = {};
};

RogueFrame Request(const char* method, uint32_t slot, uint32_t generation, std::string body = "");
RogueFrame Response(uint32_t slot, uint32_t generation);
SendHeader Issuing(uint32_t credits);

// One SEND as a correct peer would encode it.
std::string EncodeSend(SendHeader send, const std::vector<RogueFrame>& frames);

// The RDMA device or the TCP wire that VERBENA_DEVICE names; otherwise the soft device over shared
// memory.
std::string RogueDevice();

// Strict leases, whatever the default is, and no checksums, since no rogue computes them.
LinkLimits RoguesLimits();

class RoguePeer {
 public:
  static constexpr uint32_t kCredits = 8;
  static constexpr Duration kPatience = std::chrono::seconds(20);

  // The runtime that the rogue claims to be. Set before it connects, like `eager_bytes`.
  RuntimeId runtime_id = RuntimeId::Random();
  // The methods that it claims to have as a server. It tells no shapes.
  std::vector<uint64_t> methods = TestMethods();
  // The features that it knows.
  uint64_t features = kSupportedFeatures;
  // The largest SEND that the rogue claims to take.
  uint32_t eager_bytes = LinkParameters{}.eager_bytes;
  // The incarnation that it tells as a server; 0: none.
  uint64_t incarnation = 0;
  // Whether it answers the PING by which a client's link proves itself.
  bool answers_proof = true;

  // Uses the executor and bootstrap of `runtime`, which must outlive the peer. `device` is a name
  // for OpenDevice(). The handshake issues kCredits credits, even if `receives` is false and no
  // receive is posted.
  explicit RoguePeer(Runtime& runtime, const std::string& device = RogueDevice(),
                     bool receives = true);
  ~RoguePeer() { EXPECT_EQ(Run(DropStream()), absl::OkStatus()); }

  // Whether memory windows check what a peer does with them. If they do not (docs/devices.md),
  // SEND_WITH_INV is no part of the protocol, and some attacks work.
  bool windows_checked() const { return device_->capabilities().windows_checked; }

  // Connects as a client. Unless `confirms`, it never says Ready; a test may call Confirm() later.
  void ConnectTo(const std::string& address, bool confirms = true);
  void Confirm() { EXPECT_EQ(Run(ConfirmReady(*stream_)), absl::OkStatus()); }
  // Accepts one link as a server. Call it while a client is connecting to `listener`. Except over
  // shared memory, the client sends a PING first: this returns when the client's device has the
  // PONG, unless !answers_proof. The PING costs the client none of kCredits.
  void AcceptFrom(MessageListener& listener);

  // Tells the server's end of the link from every other, once the rogue has connected as a client.
  uint64_t server_identity() const { return server_identity_; }

  void Send(const std::string& bytes);
  // The same with an invalidation.
  void SendInvalidating(const std::string& bytes, uint32_t rkey);
  // Sends the frames that end a lease whose key is `rkey`, as a correct peer does: if windows are
  // checked, the SEND invalidates the key.
  void SendEnding(const std::string& bytes, uint32_t rkey);
  // Writes into the peer's memory and returns the status of the WRITE. All WRs that were posted
  // before have ended by then.
  ibv_wc_status Write(uint64_t address, uint32_t rkey, const std::string& bytes);

  // Polls until the peer's next SEND with frames, and returns them. After kPatience it fails the
  // test, and returns one empty frame.
  std::vector<RogueFrame> Receive();

  // SENDs that Receive() has taken, also those without frames: each cost the peer a credit. The
  // PING of AcceptFrom() does not count.
  uint32_t sends_received() const { return sends_received_; }

  // True if the peer ends the link (closes its bootstrap stream) within kPatience.
  bool IsDropped();

 private:
  // The wr_ids of this peer's own WRs; receives have WrIds.
  static constexpr uint64_t kWrite = ~uint64_t{0};
  static constexpr uint64_t kOther = kWrite - 1;

  // Bytes of posted WRs stay in a ring of this size. It is reused from its start, long after the
  // device has read what is there.
  static constexpr size_t kPostedBytes = 1 << 20;

  void Post(ibv_send_wr request, const std::string& bytes);
  // Issues the client another credit for the PING that it spent one on.
  void IssueForProof(char* bytes, size_t size) const;
  // Until a WR of that wr_id has ended, and with it all before. Fails the test after kPatience.
  ibv_wc_status AwaitOwn(uint64_t wr_id);
  void AnswerProof();

  template <typename T>
  T Run(Task<T> task) {
    return runtime_.BlockOn(std::move(task));
  }

  LinkParameters Mine() const;
  absl::Status ConnectQp(const LinkParameters& peer);
  Task<absl::Status> Offer(std::string address, bool confirms);
  Task<absl::Status> Answer(MessageListener& listener);
  Task<absl::Status> ReadStream();
  Task<absl::Status> DropStream();

  Runtime& runtime_;
  uint64_t server_identity_ = 0;
  const LinkLimits limits_;
  const std::unique_ptr<Device> device_;
  PdHandle pd_;
  Arena posted_;
  size_t posted_bytes_ = 0;
  CqHandle cq_;
  std::unique_ptr<ReceiveRing> receives_;
  PortAddress address_;
  QpHandle qp_;
  std::unique_ptr<MessageStream> stream_;
  std::vector<ibv_wc> unread_;
  uint32_t sends_received_ = 0;
  uint32_t sends_of_proof_ = 0;  // of the client, whose credits no header of a test counts
};

// The header of a peer that has issued the credits of its handshake and no more.
inline const SendHeader kCorrect = Issuing(RoguePeer::kCredits);

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_ROGUE_PEER_H_
