// A link offers the GID of the address by which its bootstrap connected, if its port has that GID.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/connect/passing_stream.h"
#include "tests/transport/device/delegating_device.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace own_address_test {

using GidBytes = std::array<uint8_t, 16>;

constexpr GidBytes kOther = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 9};

// A port with a second GID, 10.0.0.9.
class TwoGids final : public DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;
  DevicePort default_port() const override { return {.alike = {1}}; }
  absl::StatusOr<ibv_gid> QueryGid(uint8_t port, int index) override {
    if (index == 0) return DelegatingDevice::QueryGid(port, 0);
    ibv_gid gid{};
    std::copy(kOther.begin(), kOther.end(), gid.raw);
    return gid;
  }
  // The soft device has the first one alone.
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    ibv_qp_attr changed = attributes;
    changed.ah_attr.grh.sgid_index = 0;
    return DelegatingDevice::ModifyQp(qp, changed, mask);
  }
};

// A client's stream from 10.0.0.9. It keeps the GID of the Hello, and gives the peer the first one,
// by which it finds the device.
class StreamFromOther final : public OtherHello {
 public:
  StreamFromOther(std::unique_ptr<MessageStream> stream, const ibv_gid& first, GidBytes& offered)
      : OtherHello(std::move(stream), [first, &offered](LinkParameters hello) {
          offered = hello.gid;
          std::copy(std::begin(first.raw), std::end(first.raw), hello.gid.begin());
          return EncodeHello(hello, {});
        }) {}

  std::string own_address() const override { return "10.0.0.9"; }
};

class OwnAddressTest : public LinksFixture {
 protected:
  void SetUp() override { Start({}, {}); }

  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    return std::make_unique<TwoGids>(device);
  }
  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    return std::make_unique<StreamFromOther>(std::move(stream), device().QueryGid(1, 0).value(),
                                             offered_);
  }

  GidBytes offered_{};
  Receiver client_listener_;
  Receiver server_listener_;
};

TEST_F(OwnAddressTest, ALinkOffersTheGidOfItsBootstrapsAddress) {
  ASSERT_NE(Connect(client_listener_, server_listener_), nullptr);
  EXPECT_EQ(offered_, kOther);
}

}  // namespace own_address_test
}  // namespace verbena::internal
