// Files are renamed and removed, and directories made, through the ring and by threads. Each
// refusal names the file. Built once per backend.

#include "verbena/transport/file/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "tests/transport/file/file_fixture.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {
namespace file_names_test {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

class FileNamesTest : public FileTest {
 protected:
  absl::Status Await(Task<absl::Status> task) {
    absl::Status status = absl::UnknownError("not awaited");
    Run([&]() -> Task<void> { status = co_await std::move(task); });
    return status;
  }
  bool Exists(const std::string& name) const { return std::filesystem::exists(Path(name)); }
};

TEST_F(FileNamesTest, AFileIsRenamedAndRemoved) {
  MakeFile("a", "abc");
  EXPECT_TRUE(Await(RenameFile(Path("a"), Path("b"))).ok());
  EXPECT_FALSE(Exists("a"));
  EXPECT_EQ(Contents("b"), "abc");
  EXPECT_TRUE(Await(RemoveFile(Path("b"))).ok());
  EXPECT_FALSE(Exists("b"));
  EXPECT_TRUE(Await(SyncDirectory(directory_)).ok());
}

TEST_F(FileNamesTest, ARenameThatReplacesNothingSaysThatTheNameIsTaken) {
  MakeFile("a", "a");
  MakeFile("b", "b");
  const absl::Status taken = Await(RenameFile(Path("a"), Path("b"), RENAME_NOREPLACE));
  EXPECT_EQ(taken.code(), StatusCode::kAlreadyExists) << taken;
  EXPECT_THAT(taken.ToString(), AllOf(HasSubstr(Path("a")), HasSubstr(Path("b"))));
  EXPECT_EQ(Contents("b"), "b");
  EXPECT_TRUE(Await(RenameFile(Path("a"), Path("b"))).ok());
  EXPECT_EQ(Contents("b"), "a");
}

TEST_F(FileNamesTest, ADirectoryIsMadeWithItsMode) {
  const mode_t mask = umask(0);
  EXPECT_TRUE(Await(MakeDirectory(Path("d"), 0750)).ok());
  umask(mask);
  struct stat about;
  ASSERT_EQ(stat(Path("d").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode, S_IFDIR | 0750u);
  EXPECT_EQ(Await(MakeDirectory(Path("d"))).code(), StatusCode::kAlreadyExists);
}

TEST_F(FileNamesTest, ANameThatIsNotThereIsNamed) {
  for (const absl::Status& status :
       {Await(RenameFile(Path("none"), Path("b"))), Await(RemoveFile(Path("none"))),
        Await(MakeDirectory(Path("none/d"))), Await(SyncDirectory(Path("none")))}) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << status;
    EXPECT_THAT(status.ToString(), HasSubstr(Path("none")));
  }
  MakeFile("a", "a");
  EXPECT_EQ(Await(SyncDirectory(Path("a"))).code(), StatusCode::kFailedPrecondition);
}

TEST_F(FileNamesTest, ACancelledScopeChangesNothing) {
  MakeFile("a", "a");
  Run([&]() -> Task<void> {
    CancelScope scope;
    scope.Request();
    EXPECT_EQ((co_await RemoveFile(Path("a")).In(&scope)).code(), StatusCode::kCancelled);
  });
  EXPECT_TRUE(Exists("a"));
}

}  // namespace file_names_test
}  // namespace verbena::internal
