// The directories of a FileBootstrap pass on whole messages only, follow no link, and are swept
// after their owner was killed. Garbage in them is refused.

#include "verbena/transport/connect/file_spool.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tests/support/forbidden_call.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/file_bootstrap.h"

namespace verbena::internal {
namespace file_spool_test {

class FileSpoolTest : public testing::Test {
 protected:
  FileSpoolTest() : top_(testing::TempDir() + "/spool.XXXXXX") {
    EXPECT_NE(mkdtemp(top_.data()), nullptr);
    listener_ = top_ + "/storage";
    EXPECT_EQ(mkdir(listener_.c_str(), 0700), 0);
    listening_ = *FileLock::Take(ListenerLockPath(listener_));
  }
  ~FileSpoolTest() override { std::filesystem::remove_all(top_); }

  std::string OnlyConnection() {
    const auto connections = UnclaimedConnections(listener_);
    EXPECT_EQ(connections.size(), 1u);
    return connections.empty() ? "" : connections.front();
  }

  void Put(const std::string& path, size_t bytes) {
    std::ofstream(path) << std::string(bytes, 'x');
  }

  std::string top_;
  std::string listener_;
  std::optional<FileLock> listening_;
};

TEST_F(FileSpoolTest, ADirectoryThatOthersMayWriteToIsRefused) {
  ASSERT_EQ(chmod(listener_.c_str(), 0777), 0);
  const absl::Status status = FileSpool::Create(listener_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_NE(status.message().find("chmod 700"), std::string::npos) << status;
  ASSERT_EQ(chmod(listener_.c_str(), 0700), 0);
  FileSpool client = *FileSpool::Create(listener_);
  const std::string connection = OnlyConnection();
  ASSERT_EQ(chmod(connection.c_str(), 0770), 0);
  EXPECT_EQ(FileSpool::Adopt(connection).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(FileSpoolTest, ALinkToADirectoryIsRefused) {
  const std::string link = top_ + "/link";
  ASSERT_EQ(symlink(listener_.c_str(), link.c_str()), 0);
  EXPECT_EQ(FileSpool::Create(link).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(FileSpoolTest, AFifoInPlaceOfAMessageDoesNotBlockTheReader) {
  FileSpool client = *FileSpool::Create(listener_);
  const std::string connection = OnlyConnection();
  FileSpool server = *FileSpool::Adopt(connection);
  ASSERT_EQ(mkfifo((connection + "/client.0").c_str(), 0600), 0);
  const absl::Status status = server.Read().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST_F(FileSpoolTest, ALinkInPlaceOfAMessageIsNotFollowed) {
  FileSpool client = *FileSpool::Create(listener_);
  const std::string connection = OnlyConnection();
  FileSpool server = *FileSpool::Adopt(connection);
  Put(top_ + "/secret", 10);
  ASSERT_EQ(symlink((top_ + "/secret").c_str(), (connection + "/client.0").c_str()), 0);
  EXPECT_FALSE(server.Read().ok());
  EXPECT_TRUE(std::filesystem::exists(top_ + "/secret"));
}

TEST_F(FileSpoolTest, AConnectionIsTakenOnce) {
  FileSpool client = *FileSpool::Create(listener_);
  const std::string connection = OnlyConnection();
  FileSpool server = *FileSpool::Adopt(connection);
  EXPECT_EQ(FileSpool::Adopt(connection).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(UnclaimedConnections(listener_).empty());
  ASSERT_TRUE(client.Write("hello").ok());
  EXPECT_EQ(**server.Read(), "hello");
  EXPECT_EQ(*server.Read(), std::nullopt);
}

TEST_F(FileSpoolTest, NothingIsLeftOnceBothEndsHaveClosed) {
  FileSpool client = *FileSpool::Create(listener_);
  FileSpool server = *FileSpool::Adopt(OnlyConnection());
  ASSERT_TRUE(client.Write("never read").ok());
  client.Close();
  server.Close();
  int left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(listener_)) {
    if (entry.path().filename() != "lock") ++left;
  }
  EXPECT_EQ(left, 0);
}

TEST_F(FileSpoolTest, AMessageThatIsTooLongIsRefusedWithoutReadingItAll) {
  FileSpool client = *FileSpool::Create(listener_);
  const std::string connection = OnlyConnection();
  FileSpool server = *FileSpool::Adopt(connection);
  Put(connection + "/client.0", 10 * kMaxBootstrapMessageBytes);
  EXPECT_EQ(server.Read().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FileSpoolTest, AMessageThatCannotBeRemovedIsAnError) {
  FileSpool client = *FileSpool::Create(listener_);
  FileSpool server = *FileSpool::Adopt(OnlyConnection());
  ASSERT_TRUE(client.Write("stays").ok());
  WithForbidden(kUnlinkCall, EPERM, [&] {
    const absl::Status status = server.Read().status();
    EXPECT_NE(status.message().find("remove "), std::string::npos) << status;
  });
}

TEST_F(FileSpoolTest, WithoutDescriptorsAPeerIsNotTakenForDead) {
  FileSpool client = *FileSpool::Create(listener_);
  FileSpool server = *FileSpool::Adopt(OnlyConnection());
  WithForbidden(SYS_openat, EMFILE, [&] {
    EXPECT_EQ(client.Write("unwritten").code(), absl::StatusCode::kResourceExhausted);
  });
  ASSERT_TRUE(client.Write("written").ok());
  EXPECT_EQ(*server.Read(), "written");
}

TEST_F(FileSpoolTest, AMessageThatIsBeingWrittenIsNotSeen) {
  FileSpool client = *FileSpool::Create(listener_);
  const std::string connection = OnlyConnection();
  FileSpool server = *FileSpool::Adopt(connection);
  Put(connection + "/.client.0", 3);
  Put(connection + "/client.1", 3);  // out of turn: another program's
  EXPECT_EQ(*server.Read(), std::nullopt);
}

TEST_F(FileSpoolTest, ADirectoryThatVanishesIsAnErrorAndNoCrash) {
  FileSpool client = *FileSpool::Create(listener_);
  FileSpool server = *FileSpool::Adopt(OnlyConnection());
  std::filesystem::remove_all(listener_);
  EXPECT_EQ(client.Write("x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server.Read().status().code(), absl::StatusCode::kUnavailable);
  client.Close();
  server.Close();
}

// A process that holds an end, and is killed.
class KilledEnd {
 public:
  template <typename TakeEnd>
  explicit KilledEnd(TakeEnd take_end) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      // An exception ends the child: GoogleTest would run it as a second test.
      const bool taken = [&]() noexcept { return take_end(); }();
      (void)!write(ready[1], taken ? "1" : "0", 1);
      for (;;) pause();
    }
    close(ready[1]);
    char answer = '0';
    EXPECT_EQ(read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, '1');
    close(ready[0]);
  }
  ~KilledEnd() { Kill(); }

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

TEST_F(FileSpoolTest, AClientThatIsKilledIsSeenAfterItsLastMessage) {
  KilledEnd client([&] {
    static std::optional<FileSpool> end;
    end.emplace(*FileSpool::Create(listener_));
    return end->Write("last words").ok();
  });
  FileSpool server = *FileSpool::Adopt(OnlyConnection());
  client.Kill();
  EXPECT_EQ(**server.Read(), "last words");
  EXPECT_EQ(server.Read().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server.Write("anybody?").code(), absl::StatusCode::kUnavailable);
}

TEST_F(FileSpoolTest, AServerThatIsKilledIsSeenAndSweptLater) {
  FileSpool client = *FileSpool::Create(listener_);
  const std::string connection = OnlyConnection();
  KilledEnd server([&] {
    static std::optional<FileSpool> end;
    end.emplace(*FileSpool::Adopt(connection));
    return true;
  });
  EXPECT_EQ(*client.Read(), std::nullopt);
  server.Kill();
  EXPECT_EQ(client.Read().status().code(), absl::StatusCode::kUnavailable);
  SweepConnections(listener_);
  EXPECT_TRUE(std::filesystem::exists(connection)) << "the client still lives";
  client.Close();
  EXPECT_FALSE(std::filesystem::exists(connection));
}

TEST_F(FileSpoolTest, AListenerThatDiesBeforeItAcceptsIsSeen) {
  FileSpool client = *FileSpool::Create(listener_);
  EXPECT_EQ(*client.Read(), std::nullopt);
  listening_.reset();
  EXPECT_EQ(client.Read().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FileSpool::Create(listener_).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(FileSpoolTest, BootstrapNamesWhatIsWrongWithItsDirectoryAndItsNames) {
  EXPECT_EQ(FileBootstrap::Create(top_ + "/nowhere").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FileBootstrap::Create("/dev/null").status().code(), absl::StatusCode::kNotFound);
  std::unique_ptr<FileBootstrap> bootstrap = *FileBootstrap::Create(top_);
  for (const std::string& name :
       {std::string(), std::string("../up"), std::string("a/b"), std::string(".hidden"),
        std::string(129, 'x'), std::string("nul\0", 4)}) {
    EXPECT_EQ(bootstrap->Listen(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

}  // namespace file_spool_test
}  // namespace verbena::internal
