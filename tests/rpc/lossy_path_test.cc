// Links prove themselves in time though their path loses packets: none of them goes over the next
// device. In the guest alone, with two rxe devices and a path between them that loses packets
// (./dev vm --devices 2 --loss 5).

#include <cstdlib>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/rpc/testing_service.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace lossy_path_test {

class LossyPathTest : public RpcTest {
 protected:
  ~LossyPathTest() override {
    stub_.reset();
    StopAll();
  }

  void SetUp() override {
    const char* const near = std::getenv("VERBENA_DEVICE");
    const char* const far = std::getenv("VERBENA_PEER_DEVICE");
    if (near == nullptr || far == nullptr) GTEST_SKIP() << "needs a guest with two rxe devices";
    far_ = *OpenDevice(far);
    near_ = *OpenDevice(near);
    server_runtime_ = StartRuntime({}, {.use = far_.get(), .also_use = far_tcp_.get()});
    Serve();
    client_runtime_ = StartRuntime({}, {.use = near_.get(), .also_use = near_tcp_.get()});
  }

  // Over loopback, which loses nothing.
  static std::unique_ptr<SoftDevice> Tcp(const std::string& name) {
    return *SoftDevice::Create(
        {.name = name, .shared_memory = false, .tcp = TcpWireOptions{.address = "127.0.0.1"}});
  }

  std::unique_ptr<Device> near_;
  std::unique_ptr<Device> far_;
  const std::unique_ptr<SoftDevice> near_tcp_ = Tcp("near-tcp");
  const std::unique_ptr<SoftDevice> far_tcp_ = Tcp("far-tcp");
};

TEST_F(LossyPathTest, NoLinkFallsBack) {
  for (int i = 0; i < 50; ++i) {
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    ASSERT_EQ(Run(EchoOnce(i, "hello")), absl::OkStatus()) << i;
    const absl::StatusOr<std::string> device = Run(channel_->DeviceName());
    ASSERT_TRUE(device.ok()) << device.status();
    ASSERT_EQ(*device, near_->name()) << "link " << i;
    stub_.reset();
    channel_.reset();
  }
}

}  // namespace lossy_path_test
}  // namespace verbena::internal
