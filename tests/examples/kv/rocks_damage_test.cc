// One sector of a store's files is damaged, wherever that is: a byte of it is flipped, it is zero,
// or the file ends there. The store is refused, or an entry that lies there cannot be read. No
// store ever lacks a write without a word.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/store.h"
#include "fmt/format.h"
#include "tests/examples/kv/rocks_fixture.h"
#include "tests/examples/kv/store_files.h"

namespace kv {
namespace rocks_damage_test {

constexpr size_t kSectorBytes = 512;
// So many writes lie in a file of entries, and as many more in the log.
constexpr int kWrites = 20;

class RocksDamageTest : public RocksFixture {
 protected:
  static std::string KeyOf(int i) { return fmt::format("key{:03}", i); }
  // Not to be compressed.
  static std::string ValueOf(int i) {
    std::minstd_rand random(static_cast<unsigned>(i + 1));
    std::string value(150, ' ');
    for (char& c : value) c = static_cast<char>(random());
    return value;
  }

  // Puts an entry, with a record that says the same.
  void PutWithRecord(int i) {
    const std::string key = KeyOf(i);
    const std::string value = ValueOf(i);
    const StoreRecord record{.id = key, .bytes = value};
    const absl::StatusOr<bool> existed = Run(
        store_->Write({.key = key, .value = value, .records = absl::MakeConstSpan(&record, 1)}));
    ASSERT_TRUE(existed.ok()) << existed.status();
  }
  void Fill() {
    write_buffer_bytes_ = size_t{1} << 20;
    Reopen();
    for (int i = 0; i < kWrites; ++i) PutWithRecord(i);
    Reopen();  // its log becomes files of entries
    for (int i = kWrites; i < 2 * kWrites; ++i) PutWithRecord(i);
    store_.reset();
  }
  // The store's files whose names begin and end so.
  std::vector<std::string> FilesOf(const std::string& begin, const std::string& end) const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      const std::string name = entry.path().filename();
      if (name.starts_with(begin) && name.ends_with(end)) files.push_back(name);
    }
    return files;
  }
  // Damages each sector of these in each way, and opens what that leaves.
  void DamageAll(const std::string& begin, const std::string& end) {
    const std::string whole = path_;
    int damaged = 0;
    for (const std::string& file : FilesOf(begin, end)) {
      const std::string bytes = BytesOf(whole + "/" + file);
      for (size_t at = 0; at < bytes.size(); at += kSectorBytes) {
        const size_t length = std::min(kSectorBytes, bytes.size() - at);
        std::string flipped = bytes;
        flipped[at + length / 2] ^= 0x20;
        std::string zero = bytes;
        zero.replace(at, length, length, '\0');
        for (const std::string& now : {flipped, zero, bytes.substr(0, at)}) {
          const char* how = now == flipped ? "a byte flipped" : now == zero ? "zero" : "cut";
          SCOPED_TRACE(fmt::format("{}, {}, at {} of {}", file, how, at, bytes.size()));
          path_ = fmt::format("{}{}", whole, ++damaged);
          CopyStore(whole, path_);
          SetBytes(path_ + "/" + file, now);
          OpenDamaged();
          std::filesystem::remove_all(path_);
        }
      }
    }
    EXPECT_GT(damaged, 0);
    path_ = whole;
  }
  void OpenDamaged() {
    absl::StatusOr<std::unique_ptr<RocksStore>> opened = OpenAt(path_);
    if (!opened.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(opened.status())) << opened.status();
      return;
    }
    store_ = *std::move(opened);
    for (int i = 0; i < 2 * kWrites; ++i) {
      for (const absl::StatusOr<std::string>& got : {Get(KeyOf(i)), GetRecord(KeyOf(i))}) {
        EXPECT_TRUE(got.ok() ? *got == ValueOf(i) : absl::IsDataLoss(got.status()))
            << i << ": " << got.status();
      }
    }
    const absl::StatusOr<ScanPage> all = Run(store_->Scan("", kPlenty));
    EXPECT_TRUE(all.ok() ? all->entries.size() == 2 * kWrites : absl::IsDataLoss(all.status()))
        << all.status();
    store_.reset();
  }
};

TEST_F(RocksDamageTest, NoSectorOfTheLogIsLostWithoutAWord) {
  Fill();
  DamageAll("", ".log");
}

TEST_F(RocksDamageTest, NoSectorOfTheListOfFilesIsLostWithoutAWord) {
  Fill();
  DamageAll("MANIFEST-", "");
  DamageAll("CURRENT", "");
}

TEST_F(RocksDamageTest, NoSectorOfAFileOfEntriesIsLostWithoutAWord) {
  Fill();
  DamageAll("", ".sst");
}

TEST_F(RocksDamageTest, NoSectorOfTheMarkIsLostWithoutAWord) {
  Fill();
  DamageAll("SYNCED", "");
}

}  // namespace rocks_damage_test
}  // namespace kv
