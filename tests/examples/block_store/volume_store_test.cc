// Volumes keep what is written to them, also when the store is opened anew. Each request that a
// volume or the disk cannot serve is refused with its reason, and changes nothing.

#include "examples/block_store/volume_store.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/limits.h"
#include "gmock/gmock.h"
#include "tests/examples/block_store/store_fixture.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace block_store {
namespace volume_store_test {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using verbena::Buffer;
using verbena::CurrentContext;
using verbena::Task;
using verbena::TaskScope;

std::vector<std::string> NamesOf(const std::vector<const Volume*>& volumes) {
  std::vector<std::string> names;
  for (const Volume* volume : volumes) names.push_back(volume->name);
  return names;
}

// --- What works ----------------------------------------------------------------------------------

TEST_F(StoreTest, BlocksComeBackAsTheyWereWritten) {
  ASSERT_TRUE(Create("db", 8).ok());
  ASSERT_TRUE(Write("db", 2 * kBlockBytes, Blocks(1, 'a') + Blocks(1, 'b')).ok());
  ASSERT_TRUE(Write("db", 7 * kBlockBytes, Blocks(1, 'z'), /*flush=*/true).ok());
  EXPECT_EQ(Read("db", 2 * kBlockBytes, 2 * kBlockBytes).value(), Blocks(1, 'a') + Blocks(1, 'b'));
  EXPECT_EQ(Read("db", 3 * kBlockBytes, kBlockBytes).value(), Blocks(1, 'b'));
  EXPECT_EQ(Read("db", 7 * kBlockBytes, kBlockBytes).value(), Blocks(1, 'z'));
  EXPECT_TRUE(Await(store_->Flush("db")).ok());
}

TEST_F(StoreTest, BlocksThatWereNeverWrittenAreZeros) {
  ASSERT_TRUE(Create("sparse", 300).ok());
  ASSERT_TRUE(Create("reserved", 300, /*reserve=*/true).ok());
  for (const char* name : {"sparse", "reserved"}) {
    EXPECT_EQ(Read(name, 0, 300 * kBlockBytes).value(), Blocks(300, '\0')) << name;
  }
}

TEST_F(StoreTest, AReservedVolumeHasItsSpaceAndASparseOneTakesItAsItIsWritten) {
  ASSERT_TRUE(Create("sparse", 256).ok());
  ASSERT_TRUE(Create("reserved", 256, /*reserve=*/true).ok());
  const auto sparse = Await(store_->Stat("sparse"));
  const auto reserved = Await(store_->Stat("reserved"));
  ASSERT_TRUE(sparse.ok()) << sparse.status();
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_EQ(sparse->name, "sparse");
  EXPECT_EQ(sparse->blocks, 256u);
  EXPECT_LT(sparse->allocated_bytes, 256 * kBlockBytes);
  EXPECT_GE(reserved->allocated_bytes, 256 * kBlockBytes);
}

TEST_F(StoreTest, AStoreOpenedAnewHasWhatWasThere) {
  ASSERT_TRUE(Create("b", 4).ok());
  ASSERT_TRUE(Create("a.1", 2).ok());
  ASSERT_TRUE(Write("b", kBlockBytes, Blocks(1, 'b'), /*flush=*/true).ok());
  Reopen();
  EXPECT_THAT(NamesOf(store_->List("", 10)), ElementsAre("a.1", "b"));
  EXPECT_EQ(Read("b", kBlockBytes, kBlockBytes).value(), Blocks(1, 'b'));
  EXPECT_EQ(store_->List("", 10)[0]->blocks, 2u);
  EXPECT_EQ(Create("b", 4).code(), StatusCode::kAlreadyExists);
}

TEST_F(StoreTest, ListsArePagesByName) {
  for (const char* name : {"c", "a", "b"}) ASSERT_TRUE(Create(name, 1).ok());
  EXPECT_THAT(NamesOf(store_->List("", 2)), ElementsAre("a", "b"));
  EXPECT_THAT(NamesOf(store_->List("b", 2)), ElementsAre("c"));
  EXPECT_THAT(NamesOf(store_->List("c", 2)), IsEmpty());
}

TEST_F(StoreTest, ManyTransfersAtOnceEachReachTheirBlocks) {
  constexpr int kBlocks = 300;
  ASSERT_TRUE(Create("v", kBlocks).ok());
  // The volume's file is opened by all of them at once.
  Reopen();
  int failures = 0;
  Run([&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    for (int i = 0; i < kBlocks; ++i) {
      scope.Spawn([&, i]() -> Task<void> {
        const std::string name = "v";
        absl::StatusOr<Buffer> buffer = co_await pool_->Allocate(kBlockBytes);
        CO_ASSERT_OK(buffer);
        std::memset(buffer->data(), i % 251, kBlockBytes);
        const uint64_t offset = static_cast<uint64_t>(i) * kBlockBytes;
        if (!(co_await store_->Write(name, offset, buffer->view(), i % 50 == 0)).ok()) ++failures;
      });
    }
    co_await scope.Join();
  });
  EXPECT_EQ(failures, 0);
  const std::string all = Read("v", 0, kBlocks * kBlockBytes).value();
  for (int i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(all[i * kBlockBytes + 17], static_cast<char>(i % 251)) << i;
  }
}

TEST_F(StoreTest, AWriteWhoseCallerGivesUpIsCarriedOutAllTheSame) {
  ASSERT_TRUE(Create("v", 1).ok());
  ASSERT_TRUE(Read("v", 0, kBlockBytes).ok());  // so that its file is open
  const Buffer buffer = TakeWith(Blocks(1, 'w'));
  absl::Status written = absl::UnknownError("not awaited");
  Run([&]() -> Task<void> {
    const std::string name = "v";
    TaskScope scope(co_await CurrentContext());
    scope.Spawn([&]() -> Task<void> {
      written = co_await store_->Write(name, 0, buffer.view(), /*flush=*/true);
    });
    scope.RequestCancel();
    co_await scope.Join();
  });
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(Read("v", 0, kBlockBytes).value(), Blocks(1, 'w'));
}

// --- Bad input -----------------------------------------------------------------------------------

TEST_F(StoreTest, AVolumeThatDoesNotExistIsNotFoundByEveryMethod) {
  for (const absl::Status& status :
       {Write("none", 0, Blocks(1, 'x')), Read("none", 0, kBlockBytes).status(),
        Await(store_->Flush("none")), Await(store_->Stat("none")).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << status;
    EXPECT_THAT(status.ToString(), HasSubstr("'none'"));
  }
}

TEST_F(StoreTest, NamesThatCouldBeSomethingElseAreRefused) {
  for (const std::string& name :
       {std::string(), std::string("."), std::string("../x"), std::string("a/b"), std::string(".a"),
        std::string("-a"), std::string("a b"), std::string("a\0b", 3), std::string("\xc3\xa4"),
        std::string(kMaxNameBytes + 1, 'a')}) {
    for (const absl::Status& status : {Create(name, 1), Read(name, 0, kBlockBytes).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
      EXPECT_THAT(status.ToString(), HasSubstr("cannot be a volume's name"));
    }
  }
  EXPECT_THAT(std::string(Create("a\n\xff", 1).message()), HasSubstr("'a\\x0a\\xff'"));
  for (const std::string& name :
       {std::string("a"), std::string("0"), std::string("A.b_c-d"), std::string("a.volume"),
        std::string("a.creating"), std::string(kMaxNameBytes, 'a')}) {
    EXPECT_TRUE(Create(name, 1).ok()) << name;
    EXPECT_TRUE(Read(name, 0, kBlockBytes).ok()) << name;
  }
  Reopen();
  EXPECT_EQ(store_->List("", 100).size(), 6u);
}

TEST_F(StoreTest, PlacesThatAreNotWholeBlocksAreRefusedAndNothingIsWritten) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(4, 'o')).ok());
  struct Case {
    uint64_t offset;
    size_t bytes;
  };
  for (const Case& bad : {Case{1, kBlockBytes}, Case{kBlockBytes - 512, kBlockBytes},
                          Case{0, kBlockBytes - 1}, Case{0, kBlockBytes + 512}, Case{0, 0}}) {
    for (const absl::Status& status : {Write("v", bad.offset, std::string(bad.bytes, 'n')),
                                       Read("v", bad.offset, bad.bytes).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad.offset << " " << bad.bytes;
      EXPECT_THAT(status.ToString(), AllOf(HasSubstr("'v'"), HasSubstr("4096")));
    }
  }
  EXPECT_EQ(Read("v", 0, 4 * kBlockBytes).value(), Blocks(4, 'o'));
}

TEST_F(StoreTest, PlacesBehindTheEndAreOutOfRangeAndNothingIsWritten) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(4, 'o')).ok());
  for (const uint64_t offset :
       {3 * kBlockBytes, 4 * kBlockBytes, 5 * kBlockBytes, ~uint64_t{0} - kBlockBytes + 1}) {
    for (const absl::Status& status :
         {Write("v", offset, Blocks(2, 'n')), Read("v", offset, 2 * kBlockBytes).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << offset;
      EXPECT_THAT(status.ToString(), AllOf(HasSubstr("'v'"), HasSubstr("16384")));
    }
  }
  EXPECT_EQ(Read("v", 0, 4 * kBlockBytes).value(), Blocks(4, 'o'));
  EXPECT_EQ(Contents("v.volume").size(), 4 * kBlockBytes);
}

TEST_F(StoreTest, ATransferIsBounded) {
  ASSERT_TRUE(Create("v", kMaxTransferBytes / kBlockBytes + 1).ok());
  EXPECT_TRUE(Read("v", kBlockBytes, kMaxTransferBytes).ok());
  const absl::Status status = Read("v", 0, kMaxTransferBytes + kBlockBytes).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("16777216"));
}

TEST_F(StoreTest, AVolumeThatExistsIsNotMadeAgainAndKeepsItsData) {
  ASSERT_TRUE(Create("v", 2).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(2, 'o')).ok());
  const absl::Status status = Create("v", 5);
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("'v'"));
  EXPECT_EQ(Read("v", 0, 2 * kBlockBytes).value(), Blocks(2, 'o'));
}

TEST_F(StoreTest, OnlyOneOfTwoMakesAVolumeThatBothMakeAtOnce) {
  std::vector<absl::Status> made;
  Run([&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    for (int i = 0; i < 2; ++i) {
      scope.Spawn([&]() -> Task<void> { made.push_back(co_await store_->Create("v", 1)); });
    }
    co_await scope.Join();
  });
  ASSERT_EQ(made.size(), 2u);
  EXPECT_NE(made[0].ok(), made[1].ok());
  EXPECT_TRUE(absl::IsAlreadyExists(made[0]) || absl::IsAlreadyExists(made[1]));
  EXPECT_TRUE(Read("v", 0, kBlockBytes).ok());
}

TEST_F(StoreTest, AFileThatSomebodyElseMadeIsNeitherReplacedNorRemoved) {
  MakeFile("v.volume", "mine");
  const absl::Status status = Create("v", 1);
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists) << status;
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("v.volume"), HasSubstr("move it away")));
  EXPECT_EQ(Contents("v.volume"), "mine");
  EXPECT_FALSE(std::filesystem::exists(Path("v.1.creating")));
  std::filesystem::remove(Path("v.volume"));
  EXPECT_TRUE(Create("v", 1).ok()) << "the name is free again";
}

TEST_F(StoreTest, ACreateWhoseCallerGivesUpIsCarriedOutAllTheSame) {
  absl::Status made = absl::UnknownError("not awaited");
  Run([&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    scope.Spawn([&]() -> Task<void> { made = co_await store_->Create("v", 1); });
    scope.RequestCancel();
    co_await scope.Join();
  });
  EXPECT_TRUE(made.ok()) << made;
  EXPECT_TRUE(Read("v", 0, kBlockBytes).ok());
}

TEST_F(StoreTest, SizesThatNoVolumeHasAreRefused) {
  for (const uint64_t blocks : {uint64_t{0}, kMaxVolumeBlocks + 1, ~uint64_t{0}}) {
    EXPECT_EQ(Create("v", blocks).code(), StatusCode::kInvalidArgument) << blocks;
  }
  EXPECT_THAT(store_->List("", 1), IsEmpty());
}

TEST_F(StoreTest, VolumesAreBounded) {
  for (size_t i = 0; i < kMaxVolumes; ++i) {
    ASSERT_TRUE(Create("v" + std::to_string(i), 1).ok()) << i;
  }
  const absl::Status status = Create("w", 1);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.ToString(), HasSubstr(std::to_string(kMaxVolumes)));
}

TEST_F(StoreTest, AVolumeThatDoesNotFitTheDiskIsNotReservedAndNothingOfItStays) {
  struct statvfs disk;
  ASSERT_EQ(statvfs(directory_.c_str(), &disk), 0);
  const uint64_t available = disk.f_bavail * disk.f_frsize / kBlockBytes;
  if (available + available / 8 + 1024 > kMaxVolumeBlocks) GTEST_SKIP() << "an enormous disk";
  const absl::Status status = Create("v", available + available / 8 + 1024, /*reserve=*/true);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("'v'"), HasSubstr("bytes")));
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  EXPECT_TRUE(Create("v", 1, /*reserve=*/true).ok()) << "the name is free again";
}

TEST_F(StoreTest, AFileSystemWithSmallerFilesSaysSoAndNothingStays) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit before = limit;
  limit.rlim_cur = 8 * kBlockBytes;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = Create("v", 9);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << status;
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

// --- The directory -------------------------------------------------------------------------------

TEST_F(StoreTest, ADirectoryThatIsMissingOrNoneIsNamed) {
  const absl::Status missing = VolumeStore::Open(Path("none"), {}).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.ToString(), HasSubstr(Path("none")));
  MakeFile("file", "text");
  const absl::Status file = VolumeStore::Open(Path("file"), {}).status();
  EXPECT_EQ(file.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(file.ToString(), HasSubstr(Path("file")));
}

TEST_F(StoreTest, ADirectoryThatMayNotBeWrittenIsNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  ASSERT_EQ(mkdir(Path("locked").c_str(), 0500), 0);
  const absl::Status status = VolumeStore::Open(Path("locked"), {}).status();
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(status.ToString(), HasSubstr(Path("locked")));
}

TEST_F(StoreTest, ADirectoryServesOneStoreAtATime) {
  const absl::Status second = OpenStore().status();
  EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.ToString(), HasSubstr("in use"));
  store_.reset();
  EXPECT_TRUE(OpenStore().ok());
}

TEST_F(StoreTest, HalfMadeVolumesAreRemovedAndNothingElse) {
  store_.reset();
  MakeFile("v.1.creating", "half");
  MakeFile("notes.txt", "notes");
  Reopen();
  EXPECT_THAT(store_->List("", 10), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(Path("v.1.creating")));
  EXPECT_EQ(Contents("notes.txt"), "notes");
}

TEST_F(StoreTest, AVolumeOfAnOddSizeStopsTheStoreFromOpening) {
  ASSERT_TRUE(Create("good", 1).ok());
  store_.reset();
  MakeFile("odd.volume", std::string(kBlockBytes + 1, 'x'));
  const absl::Status status = OpenStore().status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("odd.volume"), HasSubstr("4097")));
}

TEST_F(StoreTest, AVolumeThatSomebodyTruncatedIsDataLossAndNotZeros) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(4, 'x'), /*flush=*/true).ok());
  ASSERT_EQ(truncate(Path("v.volume").c_str(), 2 * kBlockBytes), 0);
  EXPECT_EQ(Read("v", 0, 4 * kBlockBytes).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(Read("v", 0, 2 * kBlockBytes).value(), Blocks(2, 'x'));
}

TEST_F(StoreTest, AnExecutorThatTheStoreDoesNotKnowIsRefused) {
  store_.reset();
  store_ = VolumeStore::Open(directory_, {}).value();
  EXPECT_EQ(Await(store_->Flush("v")).code(), StatusCode::kFailedPrecondition);
}

}  // namespace volume_store_test
}  // namespace block_store
