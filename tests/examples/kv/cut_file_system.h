// CutFileSystem: files for RocksDB that can lose what was not synced, as a power cut does, or have
// no room.
//
// Files lie on the machine's disk. Each is noted with the length that it had at its last sync.
// A file that is overwritten in place is noted with its bytes at that time. After CutAfter() no
// sync has an effect any more, and LoseUnsynced() cuts each file back to its noted length or bytes,
// when the database is closed. It removes directories that were made and whose parents were not
// synced since. Names of files count as durable at once: power_loss_test, in the guest, shows what
// a real file system does. For any thread.

#ifndef VERBENA_TESTS_EXAMPLES_KV_CUT_FILE_SYSTEM_H_
#define VERBENA_TESTS_EXAMPLES_KV_CUT_FILE_SYSTEM_H_

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"

namespace kv {

class CutFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  CutFileSystem() : rocksdb::FileSystemWrapper(rocksdb::FileSystem::Default()) {}

  const char* Name() const override { return "CutFileSystem"; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* context) override {
    if (full_) return Full(name);
    rocksdb::IOStatus made = FileSystemWrapper::NewWritableFile(name, options, result, context);
    if (!made.ok()) return made;
    NoteSynced(name, 0);
    *result = std::make_unique<File>(*this, name, std::move(*result));
    return made;
  }
  rocksdb::IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                      rocksdb::IODebugContext* context) override {
    rocksdb::IOStatus opened = FileSystemWrapper::NewSequentialFile(name, options, result, context);
    if (opened.ok() && name == unreadable_) {
      *result = std::make_unique<UnreadableFile>(std::move(*result));
    }
    return opened;
  }
  rocksdb::IOStatus NewRandomRWFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSRandomRWFile>* result,
                                    rocksdb::IODebugContext* context) override {
    rocksdb::IOStatus opened = FileSystemWrapper::NewRandomRWFile(name, options, result, context);
    if (opened.ok()) *result = std::make_unique<OverwrittenFile>(*this, name, std::move(*result));
    return opened;
  }
  rocksdb::IOStatus CreateDirIfMissing(const std::string& name, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* context) override {
    const bool is_new = access(name.c_str(), F_OK) != 0;
    rocksdb::IOStatus made = FileSystemWrapper::CreateDirIfMissing(name, options, context);
    std::lock_guard<std::mutex> lock(mutex_);
    if (made.ok() && is_new) new_directories_.insert(name);
    return made;
  }
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* result,
                                 rocksdb::IODebugContext* context) override {
    rocksdb::IOStatus opened = FileSystemWrapper::NewDirectory(name, options, result, context);
    if (opened.ok()) *result = std::make_unique<Directory>(*this, name, std::move(*result));
    return opened;
  }
  rocksdb::IOStatus GetChildren(const std::string& name, const rocksdb::IOOptions& options,
                                std::vector<std::string>* names,
                                rocksdb::IODebugContext* context) override {
    if (name == unreadable_ || std::exchange(listing_fails_, false)) {
      return rocksdb::IOStatus::IOError("EIO");
    }
    return FileSystemWrapper::GetChildren(name, options, names, context);
  }
  rocksdb::IOStatus FileExists(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* context) override {
    if (name == unreadable_) return rocksdb::IOStatus::IOError("EIO");
    return FileSystemWrapper::FileExists(name, options, context);
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* context) override {
    if (cut()) return rocksdb::IOStatus::OK();
    rocksdb::IOStatus renamed = FileSystemWrapper::RenameFile(from, to, options, context);
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = synced_.find(from);
    if (renamed.ok() && found != synced_.end()) {
      synced_[to] = found->second;
      synced_.erase(found);
    }
    return renamed;
  }

  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* context) override {
    if (cut()) return rocksdb::IOStatus::OK();
    return FileSystemWrapper::DeleteFile(name, options, context);
  }
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options,
                                 uint64_t* bytes, rocksdb::IODebugContext* context) override {
    rocksdb::IOStatus got = FileSystemWrapper::GetFreeSpace(path, options, bytes, context);
    if (full_) *bytes = 0;
    return got;
  }

  // Cuts the power after `syncs` more of the log: nothing becomes durable any more, though syncs
  // say so.
  void CutAfter(int syncs) { syncs_left_ = syncs; }
  // After the database was closed.
  void LoseUnsynced() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, bytes] : overwritten_) {
      if (!rocksdb::WriteStringToFile(rocksdb::Env::Default(), bytes, name).ok()) ++failures_;
    }
    overwritten_.clear();
    // A file that is gone by now does not matter.
    for (const auto& [name, bytes] : synced_) {
      if (access(name.c_str(), F_OK) == 0 && truncate(name.c_str(), bytes) != 0) ++failures_;
    }
    synced_.clear();
    for (const std::string& name : new_directories_) std::filesystem::remove_all(name);
    new_directories_.clear();
    syncs_left_ = kNever;
  }
  // The disk fails when it looks for the file `name`, reads it, or lists that directory; for none
  // if that is empty.
  void SetUnreadable(const std::string& name) { unreadable_ = name; }
  // The disk fails the next time that a directory is listed, and works again.
  void FailNextListing() { listing_fails_ = true; }
  // Whether syncs of the log fail. What they were for is in the file all the same.
  void SetSyncsFail(bool fail) { syncs_fail_ = fail; }
  // Whether the disk is full: no file grows.
  void SetFull(bool full) { full_ = full; }
  // Syncs of the log wait from now on, until Release().
  void Hold() {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = true;
  }
  void Release() {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  // Waits until a sync does.
  void AwaitHeldSync() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  // Syncs of files of the write-ahead log.
  uint64_t log_syncs() const { return log_syncs_; }
  int failures() const { return failures_; }

 private:
  static constexpr int kNever = 1 << 30;

  class File final : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(CutFileSystem& files, std::string name, std::unique_ptr<rocksdb::FSWritableFile> target)
        : FSWritableFileOwnerWrapper(std::move(target)), files_(files), name_(std::move(name)) {}

    using FSWritableFileOwnerWrapper::Append;
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* context) override {
      // The rest of the last block takes a part.
      const bool full = files_.full_;
      const rocksdb::Slice taken(data.data(), full ? data.size() / 2 : data.size());
      bytes_ += taken.size();
      const rocksdb::IOStatus appended =
          FSWritableFileOwnerWrapper::Append(taken, options, context);
      return full ? Full(name_) : appended;
    }
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             const rocksdb::DataVerificationInfo&,
                             rocksdb::IODebugContext* context) override {
      return Append(data, options, context);
    }
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* context) override {
      if (files_.syncs_fail_ && name_.ends_with(".log")) return rocksdb::IOStatus::IOError("EIO");
      files_.OnSync(name_, bytes_);
      return FSWritableFileOwnerWrapper::Sync(options, context);
    }
    rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                            rocksdb::IODebugContext* context) override {
      if (files_.syncs_fail_ && name_.ends_with(".log")) return rocksdb::IOStatus::IOError("EIO");
      files_.OnSync(name_, bytes_);
      return FSWritableFileOwnerWrapper::Fsync(options, context);
    }

   private:
    CutFileSystem& files_;
    const std::string name_;
    std::atomic<uint64_t> bytes_{0};
  };

  class UnreadableFile final : public rocksdb::FSSequentialFileOwnerWrapper {
   public:
    explicit UnreadableFile(std::unique_ptr<rocksdb::FSSequentialFile> target)
        : FSSequentialFileOwnerWrapper(std::move(target)) {}

    rocksdb::IOStatus Read(size_t, const rocksdb::IOOptions&, rocksdb::Slice*, char*,
                           rocksdb::IODebugContext*) override {
      return rocksdb::IOStatus::IOError("EIO");
    }
  };

  class Directory final : public rocksdb::FSDirectoryWrapper {
   public:
    Directory(CutFileSystem& files, std::string name, std::unique_ptr<rocksdb::FSDirectory> target)
        : FSDirectoryWrapper(std::move(target)), files_(files), name_(std::move(name)) {}

    rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                            rocksdb::IODebugContext* context) override {
      files_.OnDirectorySync(name_);
      return FSDirectoryWrapper::Fsync(options, context);
    }
    rocksdb::IOStatus FsyncWithDirOptions(const rocksdb::IOOptions& options,
                                          rocksdb::IODebugContext* context,
                                          const rocksdb::DirFsyncOptions& how) override {
      files_.OnDirectorySync(name_);
      return FSDirectoryWrapper::FsyncWithDirOptions(options, context, how);
    }

   private:
    CutFileSystem& files_;
    const std::string name_;
  };

  class OverwrittenFile final : public rocksdb::FSRandomRWFileOwnerWrapper {
   public:
    OverwrittenFile(CutFileSystem& files, std::string name,
                    std::unique_ptr<rocksdb::FSRandomRWFile> target)
        : FSRandomRWFileOwnerWrapper(std::move(target)), files_(files), name_(std::move(name)) {}

    rocksdb::IOStatus Write(uint64_t offset, const rocksdb::Slice& data,
                            const rocksdb::IOOptions& options,
                            rocksdb::IODebugContext* context) override {
      files_.OnOverwrite(name_);
      return FSRandomRWFileOwnerWrapper::Write(offset, data, options, context);
    }
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* context) override {
      files_.OnOverwriteSynced(name_);
      return FSRandomRWFileOwnerWrapper::Sync(options, context);
    }

   private:
    CutFileSystem& files_;
    const std::string name_;
  };

  bool cut() const { return syncs_left_ <= 0; }
  static rocksdb::IOStatus Full(const std::string& name) {
    return rocksdb::IOStatus::NoSpace("While appending to file: " + name,
                                      "No space left on device");
  }
  void OnSync(const std::string& name, uint64_t bytes) {
    const bool of_log = name.ends_with(".log");
    if (of_log) AwaitRelease();
    if (of_log) ++log_syncs_;
    if (cut()) return;
    if (of_log && syncs_left_ < kNever) --syncs_left_;
    NoteSynced(name, bytes);
  }
  void OnDirectorySync(const std::string& name) {
    if (cut()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(new_directories_, [&](const std::string& made) {
      return std::filesystem::path(made).lexically_normal().parent_path() ==
             std::filesystem::path(name).lexically_normal();
    });
  }
  void OnOverwrite(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string& bytes = overwritten_[name];
    if (bytes.empty() && !rocksdb::ReadFileToString(rocksdb::Env::Default(), name, &bytes).ok()) {
      ++failures_;
    }
  }
  void OnOverwriteSynced(const std::string& name) {
    if (cut()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    overwritten_.erase(name);
    synced_.erase(name);
  }
  void AwaitRelease() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_; });
    --waiting_;
  }
  void NoteSynced(const std::string& name, uint64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    synced_[name] = bytes;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  int waiting_ = 0;
  std::map<std::string, uint64_t> synced_;
  std::set<std::string> new_directories_;           // whose parents were not synced since
  std::map<std::string, std::string> overwritten_;  // as they are on the disk
  std::atomic<int> syncs_left_{kNever};
  std::atomic<bool> full_{false};
  std::atomic<bool> syncs_fail_{false};
  // Set while no database is open.
  std::string unreadable_;
  bool listing_fails_ = false;
  std::atomic<uint64_t> log_syncs_{0};
  int failures_ = 0;
};

}  // namespace kv

#endif  // VERBENA_TESTS_EXAMPLES_KV_CUT_FILE_SYSTEM_H_
