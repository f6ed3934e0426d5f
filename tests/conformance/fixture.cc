#include "tests/conformance/fixture.h"

#include <thread>
#include <utility>

#include "fmt/format.h"

namespace verbena::internal::conformance {
namespace {

// The status of a known departure, which is noted when it is seen.
MATCHER_P2(Departs, departure, instead, std::string("is ") + WcStatusName(instead)) {
  if (arg != instead) return false;
  Note(departure);
  return true;
}

}  // namespace

void ConformanceTest::SetUp() {
  device_ = Must(OpenSelectedDevice(Side::kNear));
  near_ = std::make_unique<LocalHost>(device_, GetParam().backing);
  near_info_ = Must(near_->Info());
  if (const std::string why = ReasonToSkip(); !why.empty()) GTEST_SKIP() << why;
  OpenFar();
}

void ConformanceTest::OpenFar() {
  switch (GetParam().far) {
    case Wire::Far::kSameDevice:
      far_ = std::make_unique<LocalHost>(device_, GetParam().backing);
      break;
    case Wire::Far::kOtherDevice:
      far_ = std::make_unique<LocalHost>(Must(OpenSelectedDevice(Side::kFar)), GetParam().backing);
      break;
    case Wire::Far::kOtherProcess: {
      auto process = Must(RemoteHost::Start({"--serve_host", "--device=" + selection().device,
                                             "--far_device=" + selection().far_device,
                                             "--wires=" + GetParam().name}));
      far_process_ = process.get();
      far_ = std::move(process);
    }
  }
  far_info_ = Must(far_->Info());
}

void ConformanceTest::ReplaceFarProcess() {
  far_process_->Kill();
  OpenFar();
}

void ConformanceTest::TearDown() {
  // A host in another process may be dead or, after a failure, stopped.
  if (far_process_ != nullptr) {
    far_process_->Continue();
    const absl::Status cleared = far_->Clear();
    const absl::Status finished = far_process_->Finish();
    EXPECT_TRUE(cleared.ok() || absl::IsUnavailable(cleared)) << "far: " << cleared;
    EXPECT_TRUE(finished.ok()) << "far: " << finished;
  } else if (far_ != nullptr) {
    const absl::Status cleared = far_->Clear();
    EXPECT_TRUE(cleared.ok()) << "far: " << cleared;
  }
  if (near_ != nullptr) {
    const absl::Status cleared = near_->Clear();
    EXPECT_TRUE(cleared.ok()) << "near: " << cleared;
  }
  far_.reset();
  near_.reset();
  device_.reset();
}

QpPair ConformanceTest::Connect(const EndOptions& options, const LinkOptions& link,
                                std::source_location where) {
  QpPair connection{.near = End(*near_, near_info_, "near", options),
                    .far = End(*far_, far_info_, "far", options)};
  connection.near.MakeQp(options, where);
  connection.far.MakeQp(options, where);
  ConnectQps(connection.near, connection.far, link, where);
  return connection;
}

QpPair ConformanceTest::ConnectAgain(const QpPair& other, const EndOptions& options,
                                     const LinkOptions& link, std::source_location where) {
  QpPair connection = other;
  connection.near.MakeQp(options, where);
  connection.far.MakeQp(options, where);
  ConnectQps(connection.near, connection.far, link, where);
  return connection;
}

bool ConformanceTest::Demand(bool done, Departure departure, std::source_location where) const {
  if (done) return true;
  if (IsKnown(departure, near_info_)) {
    Note(departure);
  } else {
    const DepartureText text = TextOf(departure);
    ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line()))
        << text.what << ": verbs demand: " << text.demanded;
  }
  return false;
}

testing::Matcher<ibv_wc_status> ConformanceTest::DemandStatus(ibv_wc_status demanded,
                                                              Departure departure,
                                                              ibv_wc_status instead) const {
  return DemandStatus(demanded, {{departure, instead}});
}

testing::Matcher<ibv_wc_status> ConformanceTest::DemandStatus(
    ibv_wc_status demanded,
    std::initializer_list<std::pair<Departure, ibv_wc_status>> departures) const {
  testing::Matcher<ibv_wc_status> accepted = testing::Eq(demanded);
  for (const auto& [departure, instead] : departures) {
    if (IsKnown(departure, near_info_)) {
      accepted = testing::AnyOf(accepted, Departs(departure, instead));
    }
  }
  return accepted;
}

testing::Matcher<ibv_wc_status> ConformanceTest::FailsAtSource() const {
  return DemandStatus(IBV_WC_LOC_PROT_ERR, {{Departure::kLocalKeyStatus, IBV_WC_LOC_QP_OP_ERR},
                                            {Departure::kLocalErrorFlushed, IBV_WC_WR_FLUSH_ERR}});
}

testing::Matcher<ibv_wc_status> ConformanceTest::FailsAtTarget(
    const testing::Matcher<ibv_wc_status>& demanded) const {
  if (!near_info_.iwarp) return demanded;
  return testing::AnyOf(
      demanded, IBV_WC_SUCCESS,
      DemandStatus(IBV_WC_WR_FLUSH_ERR, Departure::kUnderWayStatus, IBV_WC_LOC_QP_OP_ERR));
}

void ConformanceTest::ExpectSendFails(End& end, std::source_location where) const {
  if (end.info().iwarp) return end.AwaitState(IBV_QPS_ERR, where);
  if (end.SendCompletion(where).status == IBV_WC_SUCCESS) {
    ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line())) << "a SEND to nobody";
  }
}

std::string ConformanceTest::ReasonToSpare(Departure departure) const {
  if (!IsKnown(departure, near_info_)) return {};
  const DepartureText text = TextOf(departure);
  return fmt::format("{}: {}", text.what, text.instead);
}

void AwaitStreamed(Host& host, uint64_t count, std::source_location where) {
  const TimeLimit deadline(kPatienceMs);
  for (;;) {
    const StreamState state = Must(host.WatchStream(), where);
    if (state.completed >= count) return;
    if (deadline.passed()) {
      EndCase(fmt::format("the stream stands at {} of {}: {}, errno {}", state.completed, count,
                          WcStatusName(state.last_status), state.post_error),
              where);
    }
    std::this_thread::yield();
  }
}

StreamState AwaitStreamFailure(End& end, std::source_location where) {
  Host& host = end.host();
  if (IsKnown(Departure::kSendInErrorKept, end.info())) {
    // Does not wait long for a WR that was posted too late.
    end.AwaitState(IBV_QPS_ERR, where);
    const StreamState state = Must(host.StopStream(50), where);
    if (state.last_status == IBV_WC_SUCCESS) Note(Departure::kSendInErrorKept);
    return state;
  }
  const TimeLimit deadline(kPatienceMs);
  for (;;) {
    const StreamState state = Must(host.WatchStream(), where);
    if (state.last_status != IBV_WC_SUCCESS || state.post_error != 0) break;
    if (deadline.passed()) {
      EndCase(fmt::format("{} WRs succeeded, and the next neither fails nor ends", state.completed),
              where);
    }
    std::this_thread::yield();
  }
  return Must(host.StopStream(kPatienceMs), where);
}

void ExpectWorks(QpPair& connection, std::source_location where) {
  End& near = connection.near;
  End& far = connection.far;
  const uint64_t from = near.memory.bytes - kWorksBytes;
  const uint64_t to = far.memory.bytes - kWorksBytes;
  const std::string message = Pattern(0xabc, kWorksBytes);
  near.Put(from, message, where);
  far.Put(to, std::string(kWorksBytes, '\0'), where);
  far.Post(Receive(900, {far.memory.Piece(to, kWorksBytes)}), where);
  near.Post(Send(901, {near.memory.Piece(from, kWorksBytes)}), where);
  const ibv_wc received = far.ReceiveCompletion(where);
  const ibv_wc sent = near.SendCompletion(where);
  if (sent.status != IBV_WC_SUCCESS || sent.wr_id != 901) {
    EndCase(fmt::format("a fresh SEND ended with {}", WcStatusName(sent.status)), where);
  }
  if (received.status != IBV_WC_SUCCESS || far.Bytes(to, kWorksBytes, where) != message) {
    EndCase("a fresh SEND did not arrive as it was sent", where);
  }
}

}  // namespace verbena::internal::conformance
