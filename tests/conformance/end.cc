#include "tests/conformance/end.h"

#include <cstring>
#include <thread>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/conformance/departures.h"
#include "tests/conformance/must.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::conformance {

End::End(Host& host, const HostInfo& info, const std::string& name, const EndOptions& options)
    : host_(&host), info_(info), name_(name) {
  pd = Must(host.AllocPd());
  if (options.channel) channel = Must(host.CreateChannel());
  send_cq = Must(host.CreateCq(options.send_cq_entries, channel));
  recv_cq = options.one_cq ? send_cq : Must(host.CreateCq(options.recv_cq_entries, channel));
  if (options.srq_depth > 0) {
    srq = Must(host.CreateSrq(pd, options.srq_depth, options.cap.max_recv_sge));
  }
  memory = Must(host.Register(pd, options.memory_bytes, options.memory_access));
}

void End::MakeQp(const EndOptions& options, Where where) {
  QpOptions qp_options{.pd = pd,
                       .send_cq = send_cq,
                       .recv_cq = recv_cq,
                       .srq = srq,
                       .cap = options.cap,
                       .all_signalled = options.all_signalled};
  if (srq.id != 0) qp_options.cap.max_recv_wr = 0;
  qp = Must(host_->CreateQp(qp_options), where);
}

PostResult End::Posted(PostResult result) const {
  if (result.error < 0 && IsKnown(Departure::kNegativeErrno, info_)) {
    Note(Departure::kNegativeErrno);
    result.error = -result.error;
  }
  return result;
}

PostResult End::TryPost(std::vector<SendWr> wrs, Where where) {
  return Posted(Must(host_->PostSends(qp, std::move(wrs)), where));
}

PostResult End::TryPost(std::vector<RecvWr> wrs, Where where) {
  if (srq.id != 0) return Posted(Must(host_->PostSrqReceives(srq, std::move(wrs)), where));
  return Posted(Must(host_->PostReceives(qp, std::move(wrs)), where));
}

void End::Post(const SendWr& wr, Where where) {
  const PostResult result = TryPost(std::vector<SendWr>{wr}, where);
  if (result.error != 0) Must(ErrnoStatus(result.error, name_ + ": ibv_post_send"), where);
}

void End::Post(const RecvWr& wr, Where where) {
  const PostResult result = TryPost(std::vector<RecvWr>{wr}, where);
  if (result.error != 0) Must(ErrnoStatus(result.error, name_ + ": posting a receive"), where);
}

std::vector<ibv_wc> End::Await(Cq cq, uint32_t count, const std::string& what, Where where) {
  std::vector<ibv_wc> found = Must(host_->Await(cq, count, kPatienceMs), where);
  if (found.size() == count) return found;
  std::string came;
  for (const ibv_wc& wc : found) {
    came += fmt::format(" [{} of WR {}]", WcStatusName(wc.status), wc.wr_id);
  }
  EndCase(fmt::format("{}: {} of {} {} completions came within {} ms:{}", name_, found.size(),
                      count, what, kPatienceMs, came),
          where);
}

std::vector<ibv_wc> End::SendCompletions(uint32_t count, Where where) {
  return Await(send_cq, count, "send", where);
}

std::vector<ibv_wc> End::ReceiveCompletions(uint32_t count, Where where) {
  return Await(recv_cq, count, "receive", where);
}

ibv_wc End::SendCompletion(Where where) { return SendCompletions(1, where).front(); }

ibv_wc End::ReceiveCompletion(Where where) { return ReceiveCompletions(1, where).front(); }

std::vector<ibv_wc> End::PollAll(Where where) {
  std::vector<ibv_wc> found = Must(host_->Poll(send_cq, 64), where);
  if (recv_cq.id == send_cq.id) return found;
  const std::vector<ibv_wc> received = Must(host_->Poll(recv_cq, 64), where);
  found.insert(found.end(), received.begin(), received.end());
  return found;
}

void End::Put(uint64_t offset, const std::string& bytes, Where where) {
  Must(host_->WriteBytes(memory, offset, bytes), where);
}

std::string End::Bytes(uint64_t offset, uint64_t count, Where where) {
  return Must(host_->ReadBytes(memory, offset, count), where);
}

std::string End::Written(uint64_t offset, const std::string& expected, Where where) {
  const TimeLimit deadline(info_.iwarp ? kPatienceMs : 0);
  while (!deadline.passed()) {
    if (Must(host_->PeekBytes(memory, offset, expected.size()), where) == expected) break;
  }
  return Bytes(offset, expected.size(), where);
}

void End::PutWord(uint64_t offset, uint64_t value, Where where) {
  Put(offset, std::string(reinterpret_cast<const char*>(&value), sizeof(value)), where);
}

uint64_t End::Word(uint64_t offset, Where where) {
  uint64_t value = 0;
  std::memcpy(&value, Bytes(offset, sizeof(value), where).data(), sizeof(value));
  return value;
}

uint64_t End::PeekWord(uint64_t offset, Where where) {
  uint64_t value = 0;
  const std::string bytes = Must(host_->PeekBytes(memory, offset, sizeof(value)), where);
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

ibv_qp_state End::State(Where where) {
  const ibv_qp_state state = Must(host_->QueryQp(qp, IBV_QP_STATE), where).qp_state;
  if (state == IBV_QPS_RESET && IsKnown(Departure::kStateUntold, info_)) {
    Note(Departure::kStateUntold);
    return Must(host_->CmHasEnded(qp), where) ? IBV_QPS_ERR : IBV_QPS_RTS;
  }
  if (state == IBV_QPS_RTS && IsKnown(Departure::kEndUntold, info_) &&
      Must(host_->CmHasEnded(qp), where)) {
    Note(Departure::kEndUntold);
    return IBV_QPS_ERR;
  }
  return state;
}

void End::AwaitState(ibv_qp_state state, Where where) {
  const TimeLimit deadline(kPatienceMs);
  for (;;) {
    const ibv_qp_state now = State(where);
    if (now == state) return;
    if (deadline.passed()) {
      EndCase(fmt::format("{}: the QP is in state {}, and not in {} within {} ms", name_,
                          static_cast<int>(now), static_cast<int>(state), kPatienceMs),
              where);
    }
    // A device tells nobody of a QP's state, so we ask again, and let others run meanwhile.
    std::this_thread::yield();
  }
}

void End::ExpectInError(Where where) {
  // The event of rdma_cm comes later than the completion.
  if (info_.iwarp) return AwaitState(IBV_QPS_ERR, where);
  const ibv_qp_state now = State(where);
  if (now != IBV_QPS_ERR) {
    ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line()))
        << name_ << ": the QP is in state " << now << ", and not in ERR";
  }
}

void End::ToError(Where where) {
  ibv_qp_attr change{};
  change.qp_state = IBV_QPS_ERR;
  Must(host_->ModifyQp(qp, change, IBV_QP_STATE), where);
}

}  // namespace verbena::internal::conformance
