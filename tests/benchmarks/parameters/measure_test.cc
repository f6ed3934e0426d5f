// Every kind of measurement ends and has counted something, on the soft device. No figure is
// judged: that is the benchmark's own business.

#include "verbena/benchmarks/parameters/measure.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "verbena/transport/soft/soft_device.h"

namespace verbena::benchmarks {
namespace measure_test {

class MeasureTest : public testing::Test {
 protected:
  static constexpr auto kShort = std::chrono::milliseconds(5);
  std::unique_ptr<internal::SoftDevice> device_ = *internal::SoftDevice::Create();
};

TEST_F(MeasureTest, EveryOpcodeHasALatency) {
  for (const ibv_wr_opcode opcode :
       {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ}) {
    VerbsEnd one(*device_, {});
    VerbsEnd other(*device_, {});
    VerbsEnd::Connect(one, other);
    EXPECT_GT(MeasureLatencyUs(one, other, {.opcode = opcode, .duration = kShort}), 0)
        << "opcode " << opcode;
  }
}

TEST_F(MeasureTest, EveryWayOfWaitingIsWoken) {
  for (const Waiting waiting : {Waiting::kBusy, Waiting::kAdaptive, Waiting::kEvent}) {
    VerbsEnd one(*device_, {});
    VerbsEnd other(*device_, {});
    VerbsEnd::Connect(one, other);
    EXPECT_GT(MeasureWaitingUs(one, other, {.duration = kShort}, waiting), 0);
  }
}

TEST_F(MeasureTest, EveryWayOfARequestHasALatency) {
  for (const RequestWay way :
       {RequestWay::kGrantedWrite, RequestWay::kAskedWrite, RequestWay::kServerRead}) {
    VerbsEnd client(*device_, {});
    VerbsEnd server(*device_, {});
    VerbsEnd::Connect(client, server);
    EXPECT_GT(MeasureRequestUs(client, server, way, 4096, kShort), 0);
  }
}

TEST_F(MeasureTest, StreamsNeverOverrunAQueue) {
  for (const bool srq : {true, false}) {
    for (const int qps : {1, 4}) {
      for (const int batch : {1, 32}) {
        const EndOptions options = {.qps = qps, .srq = srq, .message_bytes = 64};
        VerbsEnd sender(*device_, options);
        VerbsEnd receiver(*device_, options);
        VerbsEnd::Connect(sender, receiver);
        EXPECT_GT(MeasureRate(sender, receiver,
                              {.batch = batch, .qps = qps, .srq = srq, .duration = kShort}),
                  0);
      }
    }
  }
}

}  // namespace measure_test
}  // namespace verbena::benchmarks
