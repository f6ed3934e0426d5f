#include "verbena/transport/soft/responder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "verbena/transport/soft/completions.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/state.h"
#include "verbena/transport/soft/user_memory.h"

namespace verbena::internal::soft {
namespace {

// The caller has seen to it that there is room.
void SendRefusal(InLane& lane, const MessageHeader& request, uint64_t position, NakReason reason,
                 uint32_t rnr_timer) {
  const RefusedFragment refusal{.position = position, .reason = reason, .rnr_timer = rnr_timer};
  std::byte* payload = lane.ReserveAnswer(sizeof(refusal));
  std::memcpy(payload, &refusal, sizeof(refusal));
  lane.PublishAnswer({.opcode = Opcode::kRefused,
                      .flags = kFirst | kLast,
                      .length = sizeof(refusal),
                      .destination = request.source,
                      .source = request.destination,
                      .psn = request.psn});
}

// Puts the next `bytes` of `read` into the answer ring, or lends them to the connection. There is
// room. False if they cannot be read.
bool AnswerWithData(InLane& lane, const InLane::PendingRead& read, uint64_t bytes,
                    Completions& cq) {
  std::byte* const payload = lane.ReserveAnswer(bytes);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  const auto* const data = reinterpret_cast<const void*>(read.address);
  LaneWire* const wire = lane.wire();
  if (wire != nullptr && bytes >= LentPayloads::kLeastBytes && wire->CanLend()) {
    wire->lent_answers().Add(lane.answers().position(), 0, data, static_cast<uint32_t>(bytes));
  } else {
    if (!CopyUserMemory(payload, data, bytes)) return false;
    cq.copied().Add(CopyWay::kRing, bytes);
  }
  lane.PublishAnswer({.opcode = Opcode::kData,
                      .flags = static_cast<uint8_t>(bytes == read.remaining ? kLast : 0),
                      .length = static_cast<uint16_t>(bytes),
                      .destination = read.request.source,
                      .source = read.request.destination,
                      .psn = read.request.psn});
  if (wire != nullptr && wire->lent_answers().full()) wire->Send();
  return true;
}

// Streams the data of a READ into the answer ring, as far as it has room, and the lane its turn.
// True when the last byte is there.
bool ContinueRead(InLane& lane, Completions& cq) {
  InLane::PendingRead& read = lane.pending_read();
  while (read.active && !lane.turn_over()) {
    const uint64_t bytes = read.NextBytes();
    if (!lane.HasRoomForAnswer(bytes)) break;
    QueuePair* const qp = FindExecutor(lane, read.request, cq);
    if (qp == nullptr || qp->responder().connection() != read.connection) {
      SendRefusal(lane, read.request, read.position, NakReason::kUnreachable, 0);
      read.active = false;
      break;
    }
    if (!cq.device().memory().view().CheckRemote(read.rkey, read.pd, read.request.destination,
                                                 read.address, bytes, IBV_ACCESS_REMOTE_READ) ||
        !AnswerWithData(lane, read, bytes, cq)) {
      SendRefusal(lane, read.request, read.position, NakReason::kAccess, 0);
      read.active = false;
      break;
    }
    read.address += bytes;
    read.remaining -= bytes;
    read.active = read.remaining != 0;
  }
  // No loan outlives the lock of the CQ.
  if (lane.wire() != nullptr && !lane.wire()->lent_answers().empty()) lane.wire()->Send();
  return !read.active && !lane.broken();
}

QueuePair* FindReceiver(const MessageHeader& request, Completions& cq) {
  return static_cast<QueuePair*>(cq.device().FindReceiver(request.destination, cq));
}

bool IsForQp(InLane& lane, const MessageHeader& request, const QueuePair& qp) {
  return qp.CanReceive() && qp.IsConnectedTo(lane.peer().address(), request.source);
}

void Serve(InLane& lane, const MessageHeader& request, Completions& cq, CompletionWriter& writer) {
  QueuePair* qp = FindReceiver(request, cq);
  const uint64_t position = lane.requests().position();
  if (qp != nullptr && qp->current_state() < IBV_QPS_RTR) {
    SendRefusal(lane, request, position, NakReason::kNotReady, 0);
    return;
  }
  if (qp == nullptr || !IsForQp(lane, request, *qp)) {
    SendRefusal(lane, request, position, NakReason::kUnreachable, 0);
    return;
  }
  qp->responder().Execute(lane, request, lane.requests().payload(), writer);
}

}  // namespace

QueuePair* FindExecutor(InLane& lane, const MessageHeader& request, Completions& cq) {
  QueuePair* qp = FindReceiver(request, cq);
  return qp != nullptr && IsForQp(lane, request, *qp) ? qp : nullptr;
}

bool ServeRequests(InLane& lane, Completions& cq, CompletionWriter& writer) {
  bool watched = false;
  MessageHeader request;
  lane.BeginTurn();
  while (!lane.broken() && !writer.full() && !lane.turn_over()) {
    if (lane.pending_read().active && !ContinueRead(lane, cq)) break;
    const RingReader::State state = lane.requests().Peek(request);
    if (state == RingReader::State::kEmpty) break;
    if (state == RingReader::State::kBroken || request.opcode > kLastRequest) {
      lane.Break();
      break;
    }
    if (!lane.HasRoomForAnswer(kShortAnswerBytes)) break;
    Serve(lane, request, cq, writer);
    lane.requests().Consume(request);
    watched |= (request.flags & kWatched) != 0;
  }
  return watched;
}

Responder::Responder(QueuePair& qp, const ibv_qp_cap& cap, bool shared)
    : qp_(qp), queue_(shared ? 0 : cap.max_recv_wr, shared ? 0 : cap.max_recv_sge) {}

int Responder::Post(ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  std::lock_guard<SpinLock> lock(qp_.receive_side().lock());
  int error = qp_.srq != nullptr || qp_.current_state() == IBV_QPS_RESET ? EINVAL : 0;
  for (; wr != nullptr && error == 0; wr = wr->next) {
    error = queue_.Post(*wr);
    if (error != 0) break;
  }
  if (error != 0) *bad_wr = wr;
  if (qp_.current_state() == IBV_QPS_ERR) {
    CompletionWriter writer(qp_.receive_side());
    Flush(writer);
    writer.Finish();
  }
  return error;
}

void Responder::Execute(InLane& lane, const MessageHeader& request, const std::byte* payload,
                        CompletionWriter& writer) {
  const uint64_t position = lane.requests().position();
  if (request.psn != expected_psn_) {
    SendRefusal(lane, request, position, NakReason::kSequence, 0);
    return;
  }
  const bool first = (request.flags & kFirst) != 0;
  Execution outcome;
  if (first != (current_ == Opcode::kNone) || (!first && current_ != request.opcode)) {
    outcome = Refuse(NakReason::kInvalidRequest);
  } else if (request.opcode == Opcode::kSend) {
    outcome = Send(request, payload, writer);
  } else if (request.opcode == Opcode::kWrite) {
    outcome = Write(lane, request, payload, writer);
  } else if (request.opcode == Opcode::kRead) {
    outcome = Read(lane, request, payload);
  } else if (request.opcode == Opcode::kSendInvalidate) {
    outcome = SendInvalidate(request, payload, writer);
  } else {
    outcome = Atomic(lane, request, payload);
  }
  if (outcome.executed) {
    ++expected_psn_;
    current_ = (request.flags & kLast) != 0 ? Opcode::kNone : request.opcode;
    if (!heard_) HearFirst();
    return;
  }
  SendRefusal(lane, request, position, outcome.reason, qp_.attributes().min_rnr_timer);
  if (outcome.reason == NakReason::kNoReceive) return;
  if (outcome.reason != NakReason::kOperation && qp_.current_state() != IBV_QPS_ERR) {
    qp_.RaiseEvent(outcome.reason == NakReason::kAccess ? IBV_EVENT_QP_ACCESS_ERR
                                                        : IBV_EVENT_QP_REQ_ERR);
  }
  qp_.Fail(qp_.receive_side(), writer);
}

// A program may move its QP to RTS when it hears that the peer is there.
void Responder::HearFirst() {
  heard_ = true;
  if (qp_.current_state() == IBV_QPS_RTR) qp_.RaiseEvent(IBV_EVENT_COMM_EST);
}

Responder::Execution Responder::Send(const MessageHeader& request, const std::byte* payload,
                                     CompletionWriter& writer) {
  if ((request.flags & kFirst) != 0 && !TakeReceive()) return Refuse(NakReason::kNoReceive);
  const ibv_wc_status status = Scatter(payload, request.length);
  if (status == IBV_WC_LOC_LEN_ERR) {
    return FailReceive(status, NakReason::kInvalidRequest, writer);
  }
  if (status != IBV_WC_SUCCESS) return FailReceive(status, NakReason::kOperation, writer);
  if ((request.flags & kLast) != 0) CompleteReceive(request, IBV_WC_RECV, received_, writer);
  return Done();
}

// The window is free when its key is reported, and no byte lands in it later. Requests that the
// peer sends through this ring are executed before this message or refused after it. A copy by the
// peer itself is over too. Only the one QP that this QP is connected to could make it, and its send
// queue makes its copies in order: it sends this message once the last byte of every earlier WR is
// in place, and copies for a later WR once it has seen this message consumed. So nobody is waited
// for.
Responder::Execution Responder::SendInvalidate(const MessageHeader& request,
                                               const std::byte* payload, CompletionWriter& writer) {
  MemoryWindows& windows = qp_.device().windows();
  const uint32_t rkey = request.immediate;
  if ((request.flags & kImmediate) != 0) return Refuse(NakReason::kInvalidRequest);
  if ((request.flags & kFirst) != 0 && !windows.IsBound(rkey, qp_.qp_num)) {
    return Refuse(NakReason::kAccess);
  }
  MessageHeader data = request;
  data.flags = static_cast<uint8_t>(data.flags & ~kLast);
  const Execution outcome = Send(data, payload, writer);
  if (!outcome.executed || (request.flags & kLast) == 0) return outcome;
  // We may have invalidated it ourselves since its first fragment.
  if (!windows.Invalidate(rkey, qp_.qp_num)) {
    return FailReceive(IBV_WC_MW_BIND_ERR, NakReason::kAccess, writer);
  }
  ibv_wc& wc = CompleteReceive(request, IBV_WC_RECV, received_, writer);
  wc.wc_flags = IBV_WC_WITH_INV;
  wc.invalidated_rkey = rkey;
  return Done();
}

Responder::Execution Responder::Write(InLane& lane, const MessageHeader& request,
                                      const std::byte* payload, CompletionWriter& writer) {
  uint32_t bytes = request.length;
  if ((request.flags & kFirst) != 0) {
    if (bytes < sizeof(TargetRange)) return Refuse(NakReason::kInvalidRequest);
    std::memcpy(&write_, payload, sizeof(TargetRange));
    payload += sizeof(TargetRange);
    bytes -= sizeof(TargetRange);
    written_ = 0;
    if (!RemoteAllowed(write_.rkey, write_.address, write_.length, IBV_ACCESS_REMOTE_WRITE)) {
      return Refuse(NakReason::kAccess);
    }
    if (write_.length > kMaxMessageBytes) return Refuse(NakReason::kInvalidRequest);
    if ((request.flags & kImmediate) != 0 && !TakeReceive()) {
      return Refuse(NakReason::kNoReceive);
    }
    if ((request.flags & kPlaced) != 0) written_ = write_.length;
  }
  if (!IsOfThisWrite(request)) return Refuse(NakReason::kInvalidRequest);
  const bool last = (request.flags & kLast) != 0;
  if (bytes > write_.length - written_ || (last && bytes != write_.length - written_)) {
    return Refuse(NakReason::kInvalidRequest);
  }
  if (!RemoteAllowed(write_.rkey, write_.address + written_, bytes, IBV_ACCESS_REMOTE_WRITE)) {
    return Refuse(NakReason::kAccess);
  }
  if (bytes >= Places::kLeastBytes && lane.wire() != nullptr) {
    if (!StoreRest(lane, payload, bytes)) return Refuse(NakReason::kAccess);
  } else if (bytes != 0) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    auto* const to = reinterpret_cast<void*>(write_.address + written_);
    if (!StoreUserMemory(to, payload, bytes)) return Refuse(NakReason::kAccess);
    qp_.receive_side().copied().Add(CopyWay::kRing, bytes);
  }
  written_ += bytes;
  if (last && (request.flags & kImmediate) != 0) {
    CompleteReceive(request, IBV_WC_RECV_RDMA_WITH_IMM, static_cast<uint32_t>(written_), writer);
  }
  return Done();
}

Responder::Execution Responder::Read(InLane& lane, const MessageHeader& request,
                                     const std::byte* payload) {
  TargetRange range;
  if (request.length != sizeof(range) || (request.flags & kLast) == 0 ||
      qp_.attributes().max_dest_rd_atomic == 0) {
    return Refuse(NakReason::kInvalidRequest);
  }
  std::memcpy(&range, payload, sizeof(range));
  if (!RemoteAllowed(range.rkey, range.address, range.length, IBV_ACCESS_REMOTE_READ)) {
    return Refuse(NakReason::kAccess);
  }
  lane.pending_read() = {.active = true,
                         .request = request,
                         .position = lane.requests().position(),
                         .address = range.address,
                         .remaining = range.length,
                         .rkey = range.rkey,
                         .pd = qp_.pd_handle(),
                         .connection = connection_};
  ContinueRead(lane, qp_.receive_side());
  return Done();
}

Responder::Execution Responder::Atomic(InLane& lane, const MessageHeader& request,
                                       const std::byte* payload) {
  TargetRange range;
  AtomicOperands operands;
  if (request.length != sizeof(range) + sizeof(operands) || (request.flags & kLast) == 0 ||
      qp_.attributes().max_dest_rd_atomic == 0) {
    return Refuse(NakReason::kInvalidRequest);
  }
  std::memcpy(&range, payload, sizeof(range));
  std::memcpy(&operands, payload + sizeof(range), sizeof(operands));
  if (range.address % sizeof(uint64_t) != 0) return Refuse(NakReason::kInvalidRequest);
  if (!RemoteAllowed(range.rkey, range.address, sizeof(uint64_t), IBV_ACCESS_REMOTE_ATOMIC)) {
    return Refuse(NakReason::kAccess);
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  auto* const number = reinterpret_cast<uint64_t*>(range.address);
  uint64_t old = operands.compare_or_add;
  const bool done = AccessUserMemory(number, sizeof(*number), [&] {
    std::atomic_ref<uint64_t> target(*number);
    if (request.opcode == Opcode::kCompareSwap) {
      target.compare_exchange_strong(old, operands.swap);
    } else {
      old = target.fetch_add(operands.compare_or_add);
    }
  });
  if (!done) return Refuse(NakReason::kAccess);
  std::byte* answer = lane.ReserveAnswer(sizeof(old));
  std::memcpy(answer, &old, sizeof(old));
  lane.PublishAnswer({.opcode = Opcode::kData,
                      .flags = kLast,
                      .length = sizeof(old),
                      .destination = request.source,
                      .source = request.destination,
                      .psn = request.psn});
  return Done();
}

bool Responder::RemoteAllowed(uint32_t rkey, uint64_t address, uint64_t bytes,
                              unsigned access) const {
  return (qp_.attributes().qp_access_flags & access) == access &&
         qp_.device().memory().view().CheckRemote(rkey, qp_.pd_handle(), qp_.qp_num, address, bytes,
                                                  access);
}

bool Responder::TakeReceive() {
  SharedReceiveQueue* shared = qp_.shared_receives();
  receive_taken_ = shared != nullptr ? shared->Pop(receive_) : queue_.Pop(receive_);
  received_ = 0;
  return receive_taken_;
}

ibv_wc_status Responder::Scatter(const std::byte* from, uint32_t bytes) {
  const SharedReceiveQueue* shared = qp_.shared_receives();
  const uint32_t pd = shared != nullptr ? shared->pd->handle : qp_.pd_handle();
  uint32_t skip = received_;
  for (uint32_t i = 0; i < receive_.num_sge && bytes != 0; ++i) {
    const ibv_sge& sge = receive_.sges[i];
    if (skip >= sge.length) {
      skip -= sge.length;
      continue;
    }
    const uint64_t address = sge.addr + skip;
    const uint32_t part = std::min(bytes, sge.length - skip);
    skip = 0;
    if (!qp_.device().memory().view().Check(sge.lkey, pd, address, part, IBV_ACCESS_LOCAL_WRITE)) {
      return IBV_WC_LOC_PROT_ERR;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    if (!CopyUserMemory(reinterpret_cast<void*>(address), from, part)) return IBV_WC_LOC_PROT_ERR;
    qp_.receive_side().copied().Add(CopyWay::kReceive, part);
    from += part;
    bytes -= part;
    received_ += part;
  }
  return bytes == 0 ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR;
}

Responder::Execution Responder::FailReceive(ibv_wc_status status, NakReason reason,
                                            CompletionWriter& writer) {
  ibv_wc& wc = writer.Add(status, true);
  wc.wr_id = receive_.wr_id;
  wc.opcode = IBV_WC_RECV;
  wc.qp_num = qp_.qp_num;
  receive_taken_ = false;
  // The receive completion tells the owner: no event besides.
  qp_.Fail(qp_.receive_side(), writer);
  return Refuse(reason);
}

ibv_wc& Responder::CompleteReceive(const MessageHeader& request, ibv_wc_opcode opcode,
                                   uint32_t bytes, CompletionWriter& writer) {
  ibv_wc& wc = writer.Add(IBV_WC_SUCCESS, (request.flags & kSolicited) != 0);
  wc.wr_id = receive_.wr_id;
  wc.opcode = opcode;
  wc.byte_len = bytes;
  wc.qp_num = qp_.qp_num;
  wc.src_qp = request.source;
  if ((request.flags & kImmediate) != 0) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = request.immediate;
  }
  receive_taken_ = false;
  return wc;
}

void Responder::Flush(CompletionWriter& writer) {
  current_ = Opcode::kNone;
  while (receive_taken_ || queue_.Pop(receive_)) {
    receive_taken_ = false;
    ibv_wc& wc = writer.Add(IBV_WC_WR_FLUSH_ERR, true);
    wc.wr_id = receive_.wr_id;
    wc.opcode = IBV_WC_RECV;
    wc.qp_num = qp_.qp_num;
  }
}

void Responder::Reset() {
  queue_.Clear();
  current_ = Opcode::kNone;
  receive_taken_ = heard_ = false;
  ++connection_;
}

// Responder: the places of WRITEs whose payload a TCP connection receives past the ring.

bool Responder::CursorOfWrites(WriteCursor& cursor) const {
  if (current_ != Opcode::kNone && current_ != Opcode::kWrite) return false;
  cursor = {.writing = current_ == Opcode::kWrite,
            .psn = expected_psn_,
            .range = write_,
            .written = written_,
            .connection = connection_};
  return true;
}

// As Execute and Write. A WRITE with immediate may be refused for want of a receive, so its first
// fragment has no place.
bool Responder::FindPlace(const MessageHeader& request, const std::byte* payload,
                          WriteCursor& cursor, uint64_t& address) const {
  const bool first = (request.flags & kFirst) != 0;
  const bool last = (request.flags & kLast) != 0;
  if (request.opcode != Opcode::kWrite || request.psn != cursor.psn || first == cursor.writing) {
    return false;
  }
  if (cursor.connection != connection_) return false;
  const auto allowed = [&](uint64_t begin, uint64_t length) {
    return RemoteAllowed(cursor.range.rkey, begin, length, IBV_ACCESS_REMOTE_WRITE);
  };
  uint32_t bytes = request.length;
  if (first) {
    if (bytes < sizeof(TargetRange) || (request.flags & kImmediate) != 0) return false;
    std::memcpy(&cursor.range, payload, sizeof(TargetRange));
    bytes -= sizeof(TargetRange);
    cursor.written = 0;
    if (cursor.range.length > kMaxMessageBytes ||
        !allowed(cursor.range.address, cursor.range.length)) {
      return false;
    }
  } else if (!IsOfThisWrite(request)) {
    return false;
  }
  const uint64_t left = cursor.range.length - cursor.written;
  if (bytes > left || (last && bytes != left)) return false;
  address = cursor.range.address + cursor.written;
  if (!allowed(address, bytes)) return false;
  cursor.written += bytes;
  cursor.writing = !last;
  ++cursor.psn;
  return true;
}

bool Responder::StoreRest(InLane& lane, const std::byte* data, uint32_t bytes) {
  const uint32_t prefix = static_cast<uint32_t>(data - lane.requests().payload());
  PlacedBytes placed = lane.wire()->TakePlacedRequest(lane.requests().position());
  if (placed.withdrawn) return false;
  if (placed.bytes != 0) placed.from -= prefix;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  auto* to = reinterpret_cast<std::byte*>(write_.address + written_);
  if (!CopyUserMemory(to, data, placed.from) ||
      !StoreUserMemory(to + placed.end(), data + placed.end(), bytes - placed.end())) {
    return false;
  }
  qp_.receive_side().copied().Add(CopyWay::kRing, bytes - placed.bytes);
  return true;
}

Place Places::OfRequest(InLane& lane, Completions& cq, const RingIntake::Incomplete& message,
                        uint64_t number, uint32_t most) {
  const MessageHeader& request = message.header;
  if (request.opcode != Opcode::kWrite || lane.broken()) return {};
  QueuePair* qp = FindExecutor(lane, request, cq);
  if (qp == nullptr) return {};
  if (next_write_.number == number) write_ = next_write_;
  // Until this one has a place.
  next_write_.number = kNone;
  Responder::WriteCursor cursor;
  if (message.position == lane.requests().position()) {
    // An earlier READ has still to read what this WRITE may write over.
    if (lane.pending_read().active) return {.later = true};
    if (!qp->responder().CursorOfWrites(cursor)) return {};
    // Its first bytes arrived before the QP was reset.
    if (write_.number == number && write_.cursor.connection != cursor.connection) return {};
  } else if (write_.number == number && write_.qpn == request.destination &&
             write_.cursor.writing) {
    cursor = write_.cursor;
  } else {
    return {.later = true};
  }
  write_ = {.number = number, .qpn = request.destination, .cursor = cursor};
  uint64_t address = 0;
  if (!qp->responder().FindPlace(request, message.payload, cursor, address)) return {};
  if (cursor.writing) {
    next_write_ = {.number = number + 1, .qpn = request.destination, .cursor = cursor};
  }
  const uint32_t prefix = (request.flags & kFirst) != 0 ? uint32_t{sizeof(TargetRange)} : 0;
  Place place;
  place.bytes = std::min(most, request.length - message.arrived);
  place.count = 1;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  place.parts[0] = {.iov_base = reinterpret_cast<void*>(address + message.arrived - prefix),
                    .iov_len = place.bytes};
  return place;
}

Place Places::OfAnswer(OutLane& lane, const RingIntake::Incomplete& message, uint64_t number,
                       uint32_t most) {
  const MessageHeader& answer = message.header;
  if (answer.opcode != Opcode::kData || lane.failed()) return {};
  LaneUser* const user = lane.FindReader(answer.destination);
  if (user == nullptr) return {};
  if (next_read_.number == number) read_ = next_read_;
  uint32_t offset = 0;
  if (message.position == lane.answers_position()) {
    offset = user->answer_offset();
  } else if (read_.number == number && read_.qpn == answer.destination && read_.psn == answer.psn) {
    offset = read_.offset;
  } else {
    return {.later = true};
  }
  read_ = {.number = number, .qpn = answer.destination, .psn = answer.psn, .offset = offset};
  Place place;
  const uint32_t bytes = std::min(most, answer.length - message.arrived);
  place.count = user->FindPlace(answer, offset, message.arrived, bytes, place.parts);
  for (size_t i = 0; i < place.count; ++i) {
    place.bytes += static_cast<uint32_t>(place.parts[i].iov_len);
  }
  next_read_ = read_;
  next_read_.offset += answer.length;
  const bool last = (answer.flags & kLast) != 0;
  next_read_.number = place.count == 0 || last ? kNone : number + 1;
  return place;
}

}  // namespace verbena::internal::soft
