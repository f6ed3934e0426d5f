// A device takes connections of other processes a few at a time, says little of those that it
// refuses, and waits, without spinning, for descriptors that it lacks. It says what is wrong with a
// process of another revision, and with its own lack of descriptors. Who connects to one never
// waits.

#include "verbena/transport/soft/control_socket.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/raw_shared_peer.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {
namespace {

using std::chrono::milliseconds;

// A process that only connects. Its constructor makes the socket, so that Connect() needs no
// descriptor.
class Caller {
 public:
  Caller() : fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {}

  void Connect(const ibv_gid& gid) {
    std::string name = "verbena-soft/";
    for (const uint8_t byte : gid.raw) name += fmt::format("{:02x}", byte);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    ASSERT_EQ(connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
  }
  // Waits for the device's first message.
  void AwaitHello() {
    ControlMessage message;
    ASSERT_EQ(recv(fd_.get(), &message, sizeof(message), 0), static_cast<ssize_t>(sizeof(message)));
    EXPECT_EQ(message.kind, ControlMessage::kHello);
  }
  // Sends the first `bytes` of `message`, and `descriptors` times standard error.
  void Send(const ControlMessage& message, size_t bytes, size_t descriptors = 0) {
    const std::vector<int> all(descriptors, STDERR_FILENO);
    iovec data{.iov_base = const_cast<ControlMessage*>(&message), .iov_len = bytes};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors));
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (descriptors != 0) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int) * descriptors);
      std::memcpy(CMSG_DATA(rights), all.data(), sizeof(int) * descriptors);
    }
    ASSERT_EQ(sendmsg(fd_.get(), &header, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }

 private:
  UniqueFd fd_;
};

// The process can open no descriptor while an object of this class exists.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    // Not 0: poll() takes no more descriptors than that.
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(UniqueFd(dup(STDERR_FILENO)).get());
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class ControlListenerTest : public ::testing::Test {
 protected:
  ControlListenerTest() { listener_ = *ControlListener::Create("soft7", {.gid = gid_}); }
  void ConnectAll(std::vector<Caller>& callers) const {
    for (Caller& caller : callers) caller.Connect(gid_);
  }

  const TimePoint now_ = TimePoint(std::chrono::hours(1));
  const ibv_gid gid_ = NewGid(/*predictable=*/false);
  std::unique_ptr<ControlListener> listener_;
};

TEST_F(ControlListenerTest, ATurnTakesAFewConnectionsAndTheNextOneTheOthers) {
  std::vector<Caller> callers(ControlListener::kAcceptsAtOnce + 5);
  ConnectAll(callers);
  EXPECT_EQ(listener_->Accept(4096, now_).size(), ControlListener::kAcceptsAtOnce);
  EXPECT_EQ(listener_->retry(), kNever);
  EXPECT_EQ(listener_->Accept(4096, now_).size(), 5u);
  EXPECT_TRUE(listener_->Accept(4096, now_).empty());
}

TEST_F(ControlListenerTest, ATurnRefusesAFewConnectionsAndSaysLittleOfThem) {
  CapturedLog log;
  std::vector<Caller> callers(ControlListener::kAcceptsAtOnce + 5);
  ConnectAll(callers);
  EXPECT_EQ(listener_->Accept(2, now_).size(), 2u);
  const std::vector<std::string> lines = log.Take();
  ASSERT_FALSE(lines.empty());
  EXPECT_LE(lines.size(), 4u);
  EXPECT_NE(lines[0].find("soft7 refuses a process"), std::string::npos) << lines[0];
  EXPECT_EQ(listener_->Accept(4096, now_).size(), 5u) << "those that the turn did not get to";
}

TEST_F(ControlListenerTest, WithoutDescriptorsItAsksToBeLeftAloneAndServesOnceThereAreSome) {
  CapturedLog log;
  std::vector<Caller> callers(1);
  ConnectAll(callers);
  {
    const NoDescriptors none;
    EXPECT_TRUE(listener_->Accept(4096, now_).empty());
  }
  EXPECT_EQ(listener_->retry(), now_ + milliseconds(100));
  const std::vector<std::string> lines = log.Take();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("EMFILE"), std::string::npos) << lines[0];
  EXPECT_EQ(listener_->Accept(4096, listener_->retry()).size(), 1u);
  EXPECT_EQ(listener_->retry(), kNever);
}

// How often this thread has given its core up, to wait.
int64_t Waits() {
  rusage usage{};
  EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nvcsw;
}

TEST_F(ControlListenerTest, WhoConnectsDoesNotWaitForRoomInTheBacklog) {
  const DeviceAddress address{.gid = NewGid(/*predictable=*/false)};
  const UniqueFd listener = ControlSocket::Listen(address).value();
  ASSERT_EQ(listen(listener.get(), 0), 0);
  const auto first = ControlSocket::Connect(address).value();
  // Several calls: the thread may wait for the allocator in one of them.
  bool waited = true;
  for (int i = 0; i < 10 && waited; ++i) {
    const int64_t before = Waits();
    EXPECT_EQ(ControlSocket::Connect(address).status().code(), absl::StatusCode::kAborted);
    waited = Waits() != before;
  }
  EXPECT_FALSE(waited);
}

// A process that has connected to the listener, and our end of its connection.
class ControlSocketTest : public ControlListenerTest {
 protected:
  ControlSocketTest() {
    caller_.Connect(gid_);
    auto accepted = listener_->Accept(1, now_);
    if (!accepted.empty()) socket_ = std::move(accepted[0]);
  }
  absl::Status Received() { return socket_->Receive().status(); }

  Caller caller_;
  std::unique_ptr<ControlSocket> socket_;
};

void ExpectRefusal(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(status.message().find(words), std::string::npos) << status;
}

TEST_F(ControlSocketTest, AProcessOfAnotherRevisionIsRefusedWithBothRevisions) {
  ControlMessage message{.kind = ControlMessage::kHello};
  message.magic = ControlMessage::kMagic | (ControlMessage::kRevision + 1);
  const std::string words = fmt::format("by revision {} of the soft device's wire, this one by {}",
                                        ControlMessage::kRevision + 1, ControlMessage::kRevision);
  // Its messages may have another size.
  for (const size_t bytes : {sizeof(message), sizeof(message) - 8, sizeof(message.magic)}) {
    caller_.Send(message, bytes);
    ExpectRefusal(Received(), absl::StatusCode::kFailedPrecondition, words);
  }
}

TEST_F(ControlSocketTest, OtherBytesAreNoSoftDevices) {
  ControlMessage message;
  message.magic = 0x20544547;  // "GET "
  caller_.Send(message, sizeof(message));
  ExpectRefusal(Received(), absl::StatusCode::kInvalidArgument, "what no soft device sends");
  caller_.Send({}, 3);
  ExpectRefusal(Received(), absl::StatusCode::kInvalidArgument, "what no soft device sends");
  caller_.Send({}, sizeof(message) - 1);
  ExpectRefusal(Received(), absl::StatusCode::kInvalidArgument, "a message of another size");
}

TEST_F(ControlSocketTest, DescriptorsThatFindNoRoomAreOursToMend) {
  caller_.Send({.kind = ControlMessage::kHello}, sizeof(ControlMessage), 3);
  {
    const NoDescriptors none;
    ExpectRefusal(Received(), absl::StatusCode::kResourceExhausted, "raise RLIMIT_NOFILE");
  }
  caller_.Send({.kind = ControlMessage::kHello}, sizeof(ControlMessage), 9);
  ExpectRefusal(Received(), absl::StatusCode::kInvalidArgument, "more than 3 descriptors");
}

std::string AwaitLine(CapturedLog& log) {
  for (;;) {
    const std::vector<std::string> lines = log.Take();
    EXPECT_LE(lines.size(), 1u);
    if (!lines.empty()) return lines[0];
    std::this_thread::yield();
  }
}

TEST(SharedWireTest, ADeviceWithoutDescriptorsTriesAgainAfterAWhileAndNotAtEachTurn) {
  CapturedLog log;
  ManualClock clock;
  const auto device = *SoftDevice::Create({.name = "soft8", .clock = &clock});
  const ibv_gid gid = *device->QueryGid(1, 0);
  Caller caller;
  {
    const NoDescriptors none;
    caller.Connect(gid);
    for (int i = 0; i < 3; ++i) {
      const std::string line = AwaitLine(log);
      EXPECT_NE(line.find("soft8 keeps processes waiting"), std::string::npos) << line;
      if (i < 2) clock.Advance(milliseconds(100));
    }
  }
  clock.Advance(milliseconds(100));
  caller.AwaitHello();
  EXPECT_TRUE(log.Take().empty());
}

// The next message of that kind.
ControlMessage AwaitMessage(ControlSocket& socket, uint32_t kind) {
  for (;;) {
    const auto received = socket.Receive();
    if (received.ok() && received->message.kind == kind) return received->message;
    if (!received.ok() && !absl::IsUnavailable(received.status())) {
      ADD_FAILURE() << received.status();
      return {};
    }
    std::this_thread::yield();
  }
}

TEST(SharedWireTest, ADeviceWithoutDescriptorsSaysLittleOfTheLanesThatItCannotMake) {
  CapturedLog log;
  ManualClock clock;
  const auto device = *SoftDevice::Create({.name = "soft8", .clock = &clock});
  QpEnd endpoint(*device, {});
  RawSharedPeer peer({.gid = endpoint.gid()});
  const UniqueFd listener = ControlSocket::Listen(peer.address()).value();
  std::vector<QpHandle> qps(12);
  for (QpHandle& qp : qps) {
    qp = endpoint.AddQp();
    ASSERT_TRUE(endpoint.ToInit(qp.get()).ok());
    ASSERT_TRUE(endpoint.ToRtr(qp.get(), peer.address().gid, RawSharedPeer::kQpn).ok());
  }
  absl::StatusOr<std::unique_ptr<ControlSocket>> socket = absl::UnavailableError("");
  while (absl::IsUnavailable(socket.status())) socket = ControlSocket::Accept(listener.get());
  ASSERT_TRUE(socket.ok()) << socket.status();
  peer.SayHello(**socket);
  std::vector<uint64_t> requests;
  for (size_t i = 0; i < qps.size(); ++i) {
    requests.push_back(AwaitMessage(**socket, ControlMessage::kResolve).request);
  }
  {
    const NoDescriptors none;
    for (const uint64_t request : requests) {
      const ControlMessage found{
          .kind = ControlMessage::kResolved, .request = request, .receive_cq = 1, .found = 1};
      ASSERT_TRUE((*socket)->Send(found).ok());
    }
    for (const QpHandle& qp : qps) EXPECT_EQ(device->AwaitPeer(qp.get()), absl::OkStatus());
  }
  const std::vector<std::string> lines = log.Take();
  const auto said = std::ranges::count_if(lines, [](const std::string& line) {
    return line.find("soft8 has no memory for a lane") != std::string::npos;
  });
  EXPECT_GE(said, 1);
  EXPECT_LE(said, 4);
}

}  // namespace
}  // namespace verbena::internal::soft
