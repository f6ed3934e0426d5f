#include "tests/conformance/fixture.h"

#include <thread>
#include <utility>

#include "fmt/format.h"

namespace verbena::conformance {

void ConformanceTest::SetUp() {
  device_ = Must(OpenSelectedDevice());
  near_ = std::make_unique<LocalHost>(device_, GetParam().backing);
  near_info_ = Must(near_->Info());
  OpenFar();
}

void ConformanceTest::OpenFar() {
  switch (GetParam().far) {
    case Wire::Far::kSameDevice:
      far_ = std::make_unique<LocalHost>(device_, GetParam().backing);
      break;
    case Wire::Far::kOtherDevice:
      far_ = std::make_unique<LocalHost>(Must(OpenSelectedDevice()), GetParam().backing);
      break;
    case Wire::Far::kOtherProcess: {
      auto process = Must(RemoteHost::Start(
          {"--serve_host", "--device=" + selection().device, "--wires=" + GetParam().name}));
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

Connection ConformanceTest::Connect(const EndOptions& options, const LinkOptions& link,
                                    std::source_location where) {
  Connection connection{.near = End(*near_, near_info_, "near", options),
                        .far = End(*far_, far_info_, "far", options)};
  connection.near.MakeQp(options, where);
  connection.far.MakeQp(options, where);
  ConnectQps(connection.near, connection.far, link, where);
  return connection;
}

Connection ConformanceTest::ConnectAgain(const Connection& other, const EndOptions& options,
                                         const LinkOptions& link, std::source_location where) {
  Connection connection = other;
  connection.near.MakeQp(options, where);
  connection.far.MakeQp(options, where);
  ConnectQps(connection.near, connection.far, link, where);
  return connection;
}

testing::Matcher<ibv_wc_status> ConformanceTest::SpecOr(ibv_wc_status spec,
                                                        ibv_wc_status real_device) const {
  if (near_info_.kind == DeviceKind::kSoft) return testing::Eq(spec);
  return testing::AnyOf(spec, real_device);
}

void AwaitStreamed(Host& host, uint64_t count, std::source_location where) {
  const Deadline deadline(kPatienceMs);
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

StreamState AwaitStreamFailure(Host& host, std::source_location where) {
  const Deadline deadline(kPatienceMs);
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

void ExpectWorks(Connection& connection, std::source_location where) {
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

}  // namespace verbena::conformance
