// Clients of the block service read what others wrote, also after a restart once it is flushed, and
// each refusal reaches them with its reason. A server on two executors and a client in one process;
// calls go through links all the same.

#include "examples/block_store/block_service.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/block_store.pb.h"
#include "examples/block_store/block_store.verbena.pb.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_client.h"
#include "examples/block_store/volume_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace block_store {
namespace block_service_test {

using absl::StatusCode;
using testing::HasSubstr;
using verbena::Buffer;
using verbena::Task;
using verbena::testing::InProcessServer;
using verbena::testing::IsOk;
using verbena::testing::StatusIs;

constexpr std::chrono::seconds kLong{30};

std::string Blocks(size_t count, char c) { return std::string(count * kBlockBytes, c); }

class BlockServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = testing::TempDir() + "/verbena_block_service_XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    Serve();
  }

  void TearDown() override {
    server_.Stop();
    store_.reset();
    std::filesystem::remove_all(directory_);
  }

  void Serve() {
    auto store = VolumeStore::Open(
        directory_, {&server_.runtime().executor(0), &server_.runtime().executor(1)});
    ASSERT_THAT(store, IsOk());
    store_ = *std::move(store);
    service_ = std::make_unique<BlockService>(*store_);
    server_.Serve({service_.get()});
  }

  v1::BlockStore::Stub stub() { return v1::BlockStore::Stub(server_.channel()); }

  absl::Status Create(const std::string& volume, uint64_t blocks, bool reserve = false) {
    v1::CreateVolumeRequest request;
    request.set_volume(volume);
    request.set_blocks(blocks);
    request.set_reserve(reserve);
    return server_.Run(stub().CreateVolume(request, {.deadline = kLong})).status();
  }

  absl::Status Write(const std::string& volume, uint64_t offset, const std::string& data,
                     bool flush = false, int executor = 0) {
    return server_.Run(WriteIt(volume, offset, data, flush), executor);
  }
  Task<absl::Status> WriteIt(std::string volume, uint64_t offset, std::string data, bool flush) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer,
                                co_await server_.channel().AllocateBuffer(data.size()));
    std::memcpy(buffer.data(), data.data(), data.size());
    co_return co_await VolumeClient(server_.channel(), std::move(volume))
        .Write(offset, buffer, flush);
  }

  // On the other executor than Write().
  absl::StatusOr<std::string> Read(const std::string& volume, uint64_t offset, size_t bytes) {
    return server_.Run(ReadIt(volume, offset, bytes), 1);
  }
  Task<absl::StatusOr<std::string>> ReadIt(std::string volume, uint64_t offset, size_t bytes) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await server_.channel().AllocateBuffer(bytes));
    std::memset(buffer.data(), '#', bytes);
    VERBENA_CO_RETURN_IF_ERROR(
        co_await VolumeClient(server_.channel(), std::move(volume)).Read(offset, buffer));
    co_return std::string(buffer.data(), buffer.size());
  }

  std::string directory_;
  InProcessServer server_{{.runtime = {.executors = 2}}};
  std::unique_ptr<VolumeStore> store_;
  std::unique_ptr<BlockService> service_;
};

TEST_F(BlockServiceTest, OneExecutorReadsWhatAnotherWrote) {
  ASSERT_TRUE(Create("v", 64).ok());
  for (const size_t count : {1, 2, 16, 31}) {
    const std::string data = Blocks(count, static_cast<char>('a' + count % 26));
    ASSERT_TRUE(Write("v", 2 * kBlockBytes, data, /*flush=*/count == 16).ok());
    const absl::StatusOr<std::string> read = Read("v", 2 * kBlockBytes, data.size());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == data) << count;
  }
  EXPECT_TRUE(Read("v", 0, kBlockBytes).value() == Blocks(1, '\0'));
}

TEST_F(BlockServiceTest, TheLargestTransferGoesBothWays) {
  const std::string data = Blocks(kMaxTransferBytes / kBlockBytes, 'x');
  ASSERT_TRUE(Create("v", data.size() / kBlockBytes).ok());
  ASSERT_THAT(Write("v", 0, data, /*flush=*/true), IsOk());
  const absl::StatusOr<std::string> read = Read("v", 0, data.size());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == data);
}

TEST_F(BlockServiceTest, StatAndListTellOfVolumes) {
  for (int i = 0; i < 70; ++i) ASSERT_TRUE(Create("v" + std::to_string(100 + i), i + 1).ok());
  v1::StatRequest request;
  request.set_volume("v104");
  const auto about = server_.Run(stub().Stat(request, {.deadline = kLong}));
  ASSERT_TRUE(about.ok()) << about.status();
  EXPECT_EQ(about->blocks(), 5u);
  // More than one page.
  const auto volumes = server_.Run(ListVolumes(server_.channel()));
  ASSERT_TRUE(volumes.ok()) << volumes.status();
  ASSERT_EQ(volumes->size(), 70u);
  for (int i = 0; i < 70; ++i) {
    EXPECT_EQ((*volumes)[i].volume(), "v" + std::to_string(100 + i));
    EXPECT_EQ((*volumes)[i].blocks(), static_cast<uint64_t>(i + 1));
  }
}

TEST_F(BlockServiceTest, RefusalsReachTheCallerWithTheirReason) {
  ASSERT_TRUE(Create("v", 4).ok());
  struct Case {
    absl::Status status;
    StatusCode code;
    const char* reason;
  };
  const std::string data = Blocks(1, 'x');
  for (const Case& refused :
       {Case{Create("v", 4), StatusCode::kAlreadyExists, "'v'"},
        Case{Create("../v", 4), StatusCode::kInvalidArgument, "'../v'"},
        Case{Create("", 4), StatusCode::kInvalidArgument, "name"},
        Case{Create("w", 0), StatusCode::kInvalidArgument, "blocks"},
        Case{Write("none", 0, data), StatusCode::kNotFound, "'none'"},
        Case{Write("a/b", 0, data), StatusCode::kInvalidArgument, "'a/b'"},
        Case{Write("v", 100, data), StatusCode::kInvalidArgument, "4096"},
        Case{Write("v", 0, data.substr(1)), StatusCode::kInvalidArgument, "4096"},
        Case{Write("v", 4 * kBlockBytes, data), StatusCode::kOutOfRange, "16384"},
        Case{Read("none", 0, kBlockBytes).status(), StatusCode::kNotFound, "'none'"},
        Case{Read("v", 1, kBlockBytes).status(), StatusCode::kInvalidArgument, "4096"},
        Case{Read("v", 0, 100).status(), StatusCode::kInvalidArgument, "4096"},
        Case{Read("v", 3 * kBlockBytes, 2 * kBlockBytes).status(), StatusCode::kOutOfRange,
             "16384"}}) {
    EXPECT_THAT(refused.status, StatusIs(refused.code, HasSubstr(refused.reason)));
  }
  EXPECT_TRUE(Read("v", 0, 4 * kBlockBytes).value() == Blocks(4, '\0')) << "nothing was written";
}

TEST_F(BlockServiceTest, AReadThatCannotBeTakesNoMemoryForIt) {
  ASSERT_TRUE(Create("v", 4).ok());
  v1::ReadRequest request;
  request.set_volume("v");
  request.set_bytes(~uint64_t{0} - 4095);
  const auto reply =
      server_.Run(stub().Read(request, {.deadline = kLong, .max_response_payload = 4096}));
  EXPECT_THAT(reply, StatusIs(StatusCode::kInvalidArgument));
}

TEST_F(BlockServiceTest, AWriteWithoutAPayloadIsRefused) {
  ASSERT_TRUE(Create("v", 4).ok());
  v1::WriteRequest request;
  request.set_volume("v");
  const auto reply = server_.Run(stub().Write(request, {.deadline = kLong}));
  EXPECT_THAT(reply, StatusIs(StatusCode::kInvalidArgument));
}

TEST_F(BlockServiceTest, AFlushedBlockIsThereAfterARestart) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'f'), /*flush=*/true).ok());
  server_.Stop();
  store_.reset();
  Serve();
  EXPECT_TRUE(Read("v", 0, kBlockBytes).value() == Blocks(1, 'f'));
}

}  // namespace block_service_test
}  // namespace block_store
