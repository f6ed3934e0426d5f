#include "tests/rpc/rogue_peer.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/ids.h"

namespace verbena::internal {

std::vector<uint64_t> TestMethods() {
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

RogueFrame Request(const char* method, uint32_t slot, uint32_t generation, std::string body) {
  RogueFrame frame;
  frame.header.kind = FrameKind::kRequest;
  frame.header.method = RogueMethods::NumberOf(method);
  frame.header.call_slot = static_cast<uint16_t>(slot);
  frame.header.call_generation = generation;
  frame.body = std::move(body);
  return frame;
}

RogueFrame Response(uint32_t slot, uint32_t generation) {
  RogueFrame frame;
  frame.header.kind = FrameKind::kResponse;
  frame.header.call_slot = static_cast<uint16_t>(slot);
  frame.header.call_generation = generation;
  return frame;
}

SendHeader Issuing(uint32_t credits) {
  SendHeader header;
  header.credits_issued = credits;
  return header;
}

std::string EncodeSend(SendHeader send, const std::vector<RogueFrame>& frames) {
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

std::string RogueDevice() {
  const char* const name = std::getenv("VERBENA_DEVICE");
  const std::string named = name == nullptr ? "" : name;
  return named.starts_with("rdma") || named.starts_with("soft:tcp") ? named : "soft";
}

LinkLimits RoguesLimits() {
  LinkLimits limits;
  // On a device without memory windows there is nothing strict to attack.
  if ((*OpenDevice(RogueDevice()))->capabilities().memory_windows) {
    limits.leases.level = LeaseLevel::kStrict;
  }
  limits.payload_checksum = PayloadChecksum::kOff;
  return limits;
}

RoguePeer::RoguePeer(Runtime& runtime, const std::string& device, bool receives)
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

void RoguePeer::ConnectTo(const std::string& address, bool confirms) {
  EXPECT_EQ(Run(Offer(address, confirms)), absl::OkStatus());
}

void RoguePeer::AcceptFrom(MessageListener& listener) {
  const absl::Status accepted = Run(Answer(listener));
  EXPECT_EQ(accepted, absl::OkStatus());
  if (accepted.ok() && answers_proof && address_.kind != LinkKind::kSoft) AnswerProof();
}

void RoguePeer::AnswerProof() {
  EXPECT_EQ(Receive()[0].header.kind, FrameKind::kPing);
  sends_received_ = 0;
  sends_of_proof_ = 1;
  Send(EncodeSend(kCorrect, {{.header = {.kind = FrameKind::kPong}}}));
  EXPECT_EQ(AwaitOwn(kOther), IBV_WC_SUCCESS);
}

void RoguePeer::Send(const std::string& bytes) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_SEND;
  Post(request, bytes);
}

void RoguePeer::SendInvalidating(const std::string& bytes, uint32_t rkey) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_SEND_WITH_INV;
  request.invalidate_rkey = rkey;
  Post(request, bytes);
}

void RoguePeer::SendEnding(const std::string& bytes, uint32_t rkey) {
  if (windows_checked()) {
    SendInvalidating(bytes, rkey);
  } else {
    Send(bytes);
  }
}

ibv_wc_status RoguePeer::Write(uint64_t address, uint32_t rkey, const std::string& bytes) {
  ibv_send_wr request = {};
  request.wr_id = kWrite;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = address;
  request.wr.rdma.rkey = rkey;
  Post(request, bytes);
  return AwaitOwn(kWrite);
}

ibv_wc_status RoguePeer::AwaitOwn(uint64_t wr_id) {
  const TimePoint limit = Clock::Real().Now() + kPatience;
  ibv_wc completion = {};
  while (Clock::Real().Now() < limit) {
    if (ibv_poll_cq(cq_.get(), 1, &completion) != 1) continue;
    if (completion.wr_id == wr_id) return completion.status;
    if (completion.wr_id != kOther) unread_.push_back(completion);
  }
  ADD_FAILURE() << "a " << (wr_id == kWrite ? "WRITE" : "SEND") << " did not end";
  return IBV_WC_GENERAL_ERR;
}

std::vector<RogueFrame> RoguePeer::Receive() {
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

bool RoguePeer::IsDropped() {
  return absl::IsUnavailable(Run(WithDeadline(ReadStream(), Clock::Real().Now() + kPatience)));
}

void RoguePeer::Post(ibv_send_wr request, const std::string& bytes) {
  ASSERT_LE(bytes.size(), kPostedBytes);
  if (posted_bytes_ + bytes.size() > kPostedBytes) posted_bytes_ = 0;
  char* copy = posted_.data() + std::exchange(posted_bytes_, posted_bytes_ + bytes.size());
  std::memcpy(copy, bytes.data(), bytes.size());
  if (request.opcode != IBV_WR_RDMA_WRITE) IssueForProof(copy, bytes.size());
  ibv_sge element = {reinterpret_cast<uintptr_t>(copy), static_cast<uint32_t>(bytes.size()),
                     posted_.lkey()};
  request.sg_list = &element;
  request.num_sge = 1;
  request.send_flags = IBV_SEND_SIGNALED;
  if (request.wr_id == 0) request.wr_id = kOther;
  ibv_send_wr* refused = nullptr;
  EXPECT_EQ(ibv_post_send(qp_.get(), &request, &refused), 0);
}

// A compact header, which has fewer bits of the count, is left as it is: no rogue server sends one.
void RoguePeer::IssueForProof(char* bytes, size_t size) const {
  SendHeader header;
  if (size < sizeof(header)) return;
  std::memcpy(&header, bytes, sizeof(header));
  if (header.is_compact()) return;
  header.credits_issued += sends_of_proof_;
  std::memcpy(bytes, &header, sizeof(header));
}

LinkParameters RoguePeer::Mine() const {
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
  mine.incarnation = incarnation;
  for (const uint64_t id : methods) mine.methods.push_back({.id = id});
  return mine;
}

absl::Status RoguePeer::ConnectQp(const LinkParameters& peer) {
  return ConnectLinkQp(*device_, qp_.get(), address_, 0, RemoteQpOf(peer), {});
}

Task<absl::Status> RoguePeer::Offer(std::string address, bool confirms) {
  absl::StatusOr<std::unique_ptr<MessageStream>> stream =
      co_await CoreOf(runtime_).shard(0).bootstrap().Connect(address);
  if (!stream.ok()) co_return stream.status();
  stream_ = *std::move(stream);
  absl::StatusOr<LinkParameters> answer =
      co_await OfferLink(*stream_, Mine(), {.features = features});
  if (!answer.ok()) co_return answer.status();
  std::vector<uint64_t> ids;
  for (const OfferedMethod& method : answer->methods) ids.push_back(method.id);
  RogueMethods::Set(std::move(ids));
  server_identity_ = uint64_t{answer->qp_number} << 24 | answer->packet_sequence_number;
  absl::Status status = ConnectQp(*answer);
  if (!status.ok() || !confirms) co_return status;
  co_return co_await ConfirmReady(*stream_);
}

Task<absl::Status> RoguePeer::Answer(MessageListener& listener) {
  absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await listener.Accept();
  if (!stream.ok()) co_return stream.status();
  stream_ = *std::move(stream);
  absl::StatusOr<LinkParameters> offer = co_await ReceiveOffer(*stream_, {.features = features});
  if (!offer.ok()) co_return offer.status();
  // One PING is enough to answer.
  offer->features &= ~kFeaturePaddedPing;
  if (absl::Status status = ConnectQp(*offer); !status.ok()) co_return status;
  absl::Status accepted = co_await AcceptOffer(*stream_, *offer, Mine());
  if (!accepted.ok()) co_return accepted;
  co_return co_await AwaitReady(*stream_);
}

Task<absl::Status> RoguePeer::ReadStream() { co_return (co_await stream_->Receive()).status(); }

Task<absl::Status> RoguePeer::DropStream() {
  stream_.reset();
  co_return absl::OkStatus();
}

}  // namespace verbena::internal
