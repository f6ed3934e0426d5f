// A repetition of a Write whose first attempt hangs in the volume's file is written only after that
// one. So what is acknowledged next stays in the volume.

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/block_service.h"
#include "examples/block_store/block_store.pb.h"
#include "examples/block_store/block_store.verbena.pb.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_client.h"
#include "examples/block_store/volume_store.h"
#include "gtest/gtest.h"
#include "tests/rpc/call_event.h"
#include "tests/rpc/link_breaker.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/transport/file/held_writes.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/task.h"

namespace block_store {
namespace repeated_write_test {

using verbena::Buffer;
using verbena::JoinHandle;
using verbena::Task;
using verbena::internal::CallEvent;
using verbena::internal::HeldWrites;

// A server on a disk on which writes hang, and a client that repeats its Writes.
class RepeatedWriteTest : public verbena::RuntimePair {
 protected:
  void SetUp() override {
    std::string directory = ::testing::TempDir() + "/verbena_repeated_write_XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    server_runtime_ = StartRuntime({}, breaker_.device());
    disk_ = server_runtime_->BlockOn(HeldWrites::Install(server_runtime_->executor(0)));
    store_ = VolumeStore::Open(directory_, {&server_runtime_->executor(0)}).value();
    service_ = std::make_unique<BlockService>(*store_);
    ServeWith(*service_);
    client_runtime_ = StartRuntime({}, breaker_.device());
    verbena::ChannelOptions options;
    options.service_config = {
        .methods = {{.name = "block_store.v1.BlockStore/Write", .retry = verbena::RetryPolicy{}}}};
    channel_ = std::make_unique<verbena::Channel>(*client_runtime_, server_->address(),
                                                  std::move(options));
  }
  void TearDown() override {
    // A handler whose write hangs would keep the server from ending.
    if (disk_ != nullptr) EndWrites();
    channel_.reset();
    client_runtime_.reset();
    server_.reset();
    service_.reset();
    store_.reset();
    server_runtime_.reset();
    std::filesystem::remove_all(directory_);
  }

  void EndWrites() { EXPECT_EQ(server_runtime_->BlockOn(disk_->EndWrites()), absl::OkStatus()); }

  Task<absl::Status> MakeVolume() {
    co_return co_await VolumeClient(*channel_, "v").Create(/*blocks=*/1);
  }
  // Fills the volume with that character.
  Task<absl::Status> Write(char content) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer data, co_await channel_->AllocateBuffer(kBlockBytes));
    std::memset(data.data(), content, data.size());
    v1::WriteRequest request;
    request.set_volume("v");
    const v1::BlockStore::Stub stub(*channel_);
    co_return (
        co_await stub.Write(request, {.request_payload = std::move(data), .wait_for_ready = true}))
        .status();
  }
  Task<absl::StatusOr<std::string>> Read() {
    co_return co_await VolumeClient(*channel_, "v").ReadBytes(0, kBlockBytes);
  }
  // Goes to the server and back, unless its link is lost.
  Task<absl::Status> Look(bool wait_for_ready) {
    const v1::BlockStore::Stub stub(*channel_);
    co_return (co_await stub.List(v1::ListRequest(), {.wait_for_ready = wait_for_ready})).status();
  }

  verbena::internal::LinkBreaker breaker_;
  std::string directory_;
  HeldWrites* disk_ = nullptr;  // the server's executor owns it
  std::unique_ptr<VolumeStore> store_;
  std::unique_ptr<BlockService> service_;
};

TEST_F(RepeatedWriteTest, ARepetitionWaitsForAFirstAttemptThatHangsInTheFile) {
  ASSERT_EQ(Run(MakeVolume()), absl::OkStatus());
  breaker_.Arm(CallEvent::kHandlerBegins);
  JoinHandle<absl::Status> repeated = client_runtime_->Spawn(Write('a'));
  EXPECT_EQ(server_runtime_->BlockOn(disk_->begun.Until(1)), absl::OkStatus());
  breaker_.OfHandler(CallEvent::kHandlerBegins);
  // The client notices when it sends something.
  Eventually(
      [this] {
        (void)Run(Look(/*wait_for_ready=*/false));
        return channel_->retry_stats().retries > 0;
      },
      "the loss of the link is seen");
  // The repetition has come to the server when these are answered.
  for (int i = 0; i < 32; ++i) EXPECT_EQ(Run(Look(/*wait_for_ready=*/true)), absl::OkStatus());
  EXPECT_EQ(disk_->begun, 1) << "the repetition is written beside the first attempt";
  EXPECT_EQ(disk_->left, 0) << "the handler of the first attempt has left its write";
  EndWrites();
  EXPECT_EQ(repeated.Join(), absl::OkStatus());
  EXPECT_EQ(disk_->begun, 2);
  EXPECT_EQ(Run(Write('b')), absl::OkStatus());
  const absl::StatusOr<std::string> read = Run(Read());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == std::string(kBlockBytes, 'b')) << "an earlier write has landed over it";
}

}  // namespace repeated_write_test
}  // namespace block_store
