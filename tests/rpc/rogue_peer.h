// RoguePeer: a peer that shakes hands correctly and then sends whatever bytes a test wants.
//
// The peer drives verbs by hand over a device of its own, so no link of Verbena stands between the
// test and the wire. For one thread, which must not be an executor's: calls block.

#ifndef VERBENA_TESTS_RPC_ROGUE_PEER_H_
#define VERBENA_TESTS_RPC_ROGUE_PEER_H_

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/receives.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/memory/arena.h"

namespace verbena::internal {

// The ids of the services that tests call, in the order in which a server of them numbers them.
inline std::vector<uint64_t> TestMethods() {
  std::vector<uint64_t> ids;
  for (const char* method :
       {"Echo", "Fail", "Throw", "Wait", "Linger", "Inflate", "Deadline", "Count"}) {
    ids.push_back(MethodId(std::string("verbena.testing.Testing/") + method));
  }
  for (const char* method : {"Put", "Get", "Swap", "Hold", "Surprise"}) {
    ids.push_back(MethodId(std::string("verbena.testing.Payloads/") + method));
  }
  for (const char* method : {"Use", "Borrow", "Return"}) {
    ids.push_back(MethodId(std::string("verbena.testing.Memories/") + method));
  }
  return ids;
}

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

inline RogueFrame Request(const char* method, uint32_t slot, uint32_t generation,
                          std::string body = "") {
  RogueFrame frame;
  frame.header.kind = FrameKind::kRequest;
  frame.header.method = RogueMethods::NumberOf(method);
  frame.header.call_slot = static_cast<uint16_t>(slot);
  frame.header.call_generation = generation;
  frame.body = std::move(body);
  return frame;
}

inline RogueFrame Response(uint32_t slot, uint32_t generation) {
  RogueFrame frame;
  frame.header.kind = FrameKind::kResponse;
  frame.header.call_slot = static_cast<uint16_t>(slot);
  frame.header.call_generation = generation;
  return frame;
}

inline SendHeader Issuing(uint32_t credits) {
  SendHeader header;
  header.credits_issued = credits;
  return header;
}

// One SEND as a correct peer would encode it.
inline std::string EncodeSend(SendHeader send, const std::vector<RogueFrame>& frames) {
  send.frame_count = static_cast<uint16_t>(frames.size());
  std::string bytes(reinterpret_cast<const char*>(&send), sizeof(send));
  for (RogueFrame frame : frames) {
    frame.header.body_bytes = static_cast<uint32_t>(frame.body.size());
    bytes.append(reinterpret_cast<const char*>(&frame.header), sizeof(frame.header));
    bytes += frame.body;
    bytes.resize((bytes.size() + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment);
  }
  return bytes;
}

// The RDMA device or the TCP wire that VERBENA_DEVICE names; otherwise the soft device over shared
// memory.
inline std::string RogueDevice() {
  const char* const name = std::getenv("VERBENA_DEVICE");
  const std::string named = name == nullptr ? "" : name;
  return named.starts_with("rdma") || named.starts_with("soft:tcp") ? named : "soft";
}

// Strict leases, whatever the default is, and no checksums, since no rogue computes them.
inline LinkLimits RoguesLimits() {
  LinkLimits limits;
  limits.leases.level = LeaseLevel::kStrict;
  limits.payload_checksum = PayloadChecksum::kOff;
  return limits;
}

class RoguePeer {
 public:
  static constexpr uint32_t kCredits = 8;
  static constexpr Duration kPatience = std::chrono::seconds(20);

  // The runtime that the rogue claims to be. Set before it connects, like `eager_bytes`.
  RuntimeId runtime_id = RuntimeId::Random();
  // The methods that it claims to have as a server.
  std::vector<uint64_t> methods = TestMethods();
  // The largest SEND that the rogue claims to take.
  uint32_t eager_bytes = LinkParameters{}.eager_bytes;

  // Uses the executor and bootstrap of `runtime`, which must outlive the peer. `device` is a name
  // for OpenDevice(). The handshake issues kCredits credits, even if `receives` is false and no
  // receive is posted.
  explicit RoguePeer(Runtime& runtime, const std::string& device = RogueDevice(),
                     bool receives = true)
      : runtime_(runtime), limits_{}, device_(*OpenDevice(device)) {
    pd_ = PdHandle(*device_, *device_->AllocPd());
    cq_ = CqHandle(*device_, *device_->CreateCq(1024, nullptr, nullptr));
    receives_ = *ReceiveRing::Create(*device_, pd_.get(), 64, /*spare=*/0, limits_.eager_bytes);
    receives_->set_needed(64);
    if (receives) {
      EXPECT_EQ(receives_->Post(), absl::OkStatus());
    }
    address_ = *ReadPortAddress(*device_, device_->default_port(), {});
    qp_ = *CreateLinkQp(*device_, pd_.get(), cq_.get(), receives_->srq(), limits_, 0, address_);
    posted_ = *Arena::Create(*device_, pd_.get(), kPostedBytes, 0);
  }
  ~RoguePeer() { EXPECT_EQ(Run(DropStream()), absl::OkStatus()); }

  // Whether memory windows check what a peer does with them. If they do not (docs/devices.md),
  // SEND_WITH_INV is no part of the protocol, and some attacks work.
  bool windows_checked() const { return device_->capabilities().windows_checked; }

  // Connects as a client. Unless `confirms`, it never says Ready; a test may call Confirm() later.
  void ConnectTo(const std::string& address, bool confirms = true) {
    EXPECT_EQ(Run(Offer(address, confirms)), absl::OkStatus());
  }
  void Confirm() { EXPECT_EQ(Run(ConfirmReady(*stream_)), absl::OkStatus()); }
  // Accepts one link as a server. Call it while a client is connecting to `listener`.
  void AcceptFrom(MessageListener& listener) { EXPECT_EQ(Run(Answer(listener)), absl::OkStatus()); }

  void Send(const std::string& bytes) {
    ibv_send_wr request = {};
    request.opcode = IBV_WR_SEND;
    Post(request, bytes);
  }
  // The same with an invalidation.
  void SendInvalidating(const std::string& bytes, uint32_t rkey) {
    ibv_send_wr request = {};
    request.opcode = IBV_WR_SEND_WITH_INV;
    request.invalidate_rkey = rkey;
    Post(request, bytes);
  }
  // Sends the frames that end a lease whose key is `rkey`, as a correct peer does: if windows are
  // checked, the SEND invalidates the key.
  void SendEnding(const std::string& bytes, uint32_t rkey) {
    if (windows_checked()) {
      SendInvalidating(bytes, rkey);
    } else {
      Send(bytes);
    }
  }
  // Writes into the peer's memory and returns the status of the WRITE. All WRs that were posted
  // before have ended by then.
  ibv_wc_status Write(uint64_t address, uint32_t rkey, const std::string& bytes) {
    ibv_send_wr request = {};
    request.wr_id = kWrite;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = rkey;
    Post(request, bytes);
    const TimePoint limit = Clock::Real().Now() + kPatience;
    ibv_wc completion = {};
    while (Clock::Real().Now() < limit) {
      if (ibv_poll_cq(cq_.get(), 1, &completion) != 1) continue;
      if (completion.wr_id == kWrite) return completion.status;
      if (completion.wr_id != kOther) unread_.push_back(completion);
    }
    ADD_FAILURE() << "a WRITE did not end";
    return IBV_WC_GENERAL_ERR;
  }

  // Polls until the peer's next SEND with frames, and returns them. After kPatience it fails the
  // test, and returns one empty frame.
  std::vector<RogueFrame> Receive() {
    const TimePoint limit = Clock::Real().Now() + kPatience;
    std::vector<RogueFrame> frames;
    while (frames.empty() && Clock::Real().Now() < limit) {
      ibv_wc completion = {};
      if (!unread_.empty()) {
        completion = unread_.front();
        unread_.erase(unread_.begin());
      } else if (ibv_poll_cq(cq_.get(), 1, &completion) != 1 || completion.wr_id == kOther ||
                 completion.status != IBV_WC_SUCCESS) {
        continue;
      }
      const uint32_t buffer = WrId::Unpack(completion.wr_id).slot;
      EXPECT_TRUE(receives_->OnCompletion(buffer));
      ++sends_received_;
      FrameParser parser(receives_->data(buffer), completion.byte_len);
      while (parser.Next()) {
        frames.push_back({parser.frame(), std::string(parser.body(), parser.frame().body_bytes)});
      }
      receives_->Release(buffer);
      if (receives_->needs_post()) {
        EXPECT_EQ(receives_->Post(), absl::OkStatus());
      }
    }
    if (frames.empty()) {
      ADD_FAILURE() << "nothing came from the peer";
      frames.emplace_back();
    }
    return frames;
  }

  // SENDs that Receive() has taken, also those without frames: each cost the peer a credit.
  uint32_t sends_received() const { return sends_received_; }

  // True if the peer ends the link (closes its bootstrap stream) within kPatience.
  bool IsDropped() {
    return absl::IsUnavailable(Run(WithDeadline(ReadStream(), Clock::Real().Now() + kPatience)));
  }

 private:
  // The wr_ids of this peer's own WRs; receives have WrIds.
  static constexpr uint64_t kWrite = ~uint64_t{0};
  static constexpr uint64_t kOther = kWrite - 1;

  // Bytes of posted WRs stay in a ring of this size. It is reused from its start, long after the
  // device has read what is there.
  static constexpr size_t kPostedBytes = 1 << 20;

  void Post(ibv_send_wr request, const std::string& bytes) {
    ASSERT_LE(bytes.size(), kPostedBytes);
    if (posted_bytes_ + bytes.size() > kPostedBytes) posted_bytes_ = 0;
    char* copy = posted_.data() + std::exchange(posted_bytes_, posted_bytes_ + bytes.size());
    std::memcpy(copy, bytes.data(), bytes.size());
    ibv_sge element = {reinterpret_cast<uintptr_t>(copy), static_cast<uint32_t>(bytes.size()),
                       posted_.lkey()};
    request.sg_list = &element;
    request.num_sge = 1;
    request.send_flags = IBV_SEND_SIGNALED;
    if (request.wr_id == 0) request.wr_id = kOther;
    ibv_send_wr* refused = nullptr;
    EXPECT_EQ(ibv_post_send(qp_.get(), &request, &refused), 0);
  }

  template <typename T>
  T Run(Task<T> task) {
    return runtime_.BlockOn(std::move(task));
  }

  LinkParameters Mine() const {
    LinkParameters mine;
    mine.kind = address_.kind;
    mine.wire_revision = address_.wire_revision;
    mine.lid = address_.lid;
    mine.mtu_bytes = 128u << address_.path_mtu;
    std::memcpy(mine.gid.data(), address_.gid.raw, mine.gid.size());
    mine.qp_number = qp_->qp_num;
    mine.initial_credits = kCredits;
    mine.eager_bytes = eager_bytes;
    mine.max_reads = 0;
    mine.runtime_id = runtime_id;
    mine.methods = methods;
    return mine;
  }

  absl::Status ConnectQp(const LinkParameters& peer) {
    return ConnectLinkQp(*device_, qp_.get(), address_, 0, RemoteQpOf(peer), {});
  }

  Task<absl::Status> Offer(std::string address, bool confirms) {
    absl::StatusOr<std::unique_ptr<MessageStream>> stream =
        co_await CoreOf(runtime_).shard(0).bootstrap().Connect(address);
    if (!stream.ok()) co_return stream.status();
    stream_ = *std::move(stream);
    absl::StatusOr<LinkParameters> answer = co_await OfferLink(*stream_, Mine());
    if (!answer.ok()) co_return answer.status();
    RogueMethods::Set(answer->methods);
    absl::Status status = ConnectQp(*answer);
    if (!status.ok() || !confirms) co_return status;
    co_return co_await ConfirmReady(*stream_);
  }

  Task<absl::Status> Answer(MessageListener& listener) {
    absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await listener.Accept();
    if (!stream.ok()) co_return stream.status();
    stream_ = *std::move(stream);
    absl::StatusOr<LinkParameters> offer = co_await ReceiveOffer(*stream_);
    if (!offer.ok()) co_return offer.status();
    if (absl::Status status = ConnectQp(*offer); !status.ok()) co_return status;
    absl::Status accepted = co_await AcceptOffer(*stream_, *offer, Mine());
    if (!accepted.ok()) co_return accepted;
    co_return co_await AwaitReady(*stream_);
  }

  Task<absl::Status> ReadStream() { co_return (co_await stream_->Receive()).status(); }

  Task<absl::Status> DropStream() {
    stream_.reset();
    co_return absl::OkStatus();
  }

  Runtime& runtime_;
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
};

// The header of a peer that has issued the credits of its handshake and no more.
inline const SendHeader kCorrect = Issuing(RoguePeer::kCredits);

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_ROGUE_PEER_H_
