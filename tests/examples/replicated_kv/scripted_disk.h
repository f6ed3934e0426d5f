// ScriptedDisk: a kv::Store in memory, as a disk that the test holds up or lets fail.

#ifndef VERBENA_TESTS_EXAMPLES_REPLICATED_KV_SCRIPTED_DISK_H_
#define VERBENA_TESTS_EXAMPLES_REPLICATED_KV_SCRIPTED_DISK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/memory_store.h"
#include "examples/kv/store.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

// What the disk does. It must outlive the ScriptedDisk.
struct DiskScript {
  DiskScript() { takes.Set(); }

  verbena::Event takes;             // while it is set; otherwise writes wait
  verbena::Event asked;             // set when a write waits
  uint64_t fails_at = 0;            // the write from which on all fail, from 1; 0: none
  bool reads_fail = false;          // scans alone
  std::function<void()> on_scan;    // called before each, if it is set
  uint64_t writes = 0;              // so far
  kv::MemoryStore* data = nullptr;  // what it holds, to look at
};

class ScriptedDisk final : public kv::Store {
 public:
  explicit ScriptedDisk(DiskScript& script) : script_(script) { script.data = &data_; }

  std::string description() const override { return "scripted"; }
  // In the order in which they come.
  verbena::Task<absl::StatusOr<bool>> Write(kv::StoreWrite write) override {
    VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await order_.Lock());
    if (!script_.takes.is_set()) script_.asked.Set();
    VERBENA_CO_RETURN_IF_ERROR(co_await script_.takes.Wait());
    if (++script_.writes >= script_.fails_at && script_.fails_at != 0) {
      co_return absl::ResourceExhaustedError("the disk is full");
    }
    co_return co_await data_.Write(write);
  }
  verbena::Task<absl::Status> Get(std::string_view key, std::string& value) override {
    co_return co_await data_.Get(key, value);
  }
  verbena::Task<absl::StatusOr<kv::ScanPage>> Scan(std::string_view start_key,
                                                   size_t max_bytes) override {
    if (script_.on_scan) script_.on_scan();
    if (script_.reads_fail) co_return absl::DataLossError("a file is damaged");
    co_return co_await data_.Scan(start_key, max_bytes);
  }
  verbena::Task<absl::Status> GetRecord(std::string_view id, std::string& bytes) override {
    co_return co_await data_.GetRecord(id, bytes);
  }
  verbena::Task<absl::StatusOr<kv::ScanPage>> ScanRecords(std::string_view start_id,
                                                          size_t max_bytes) override {
    co_return co_await data_.ScanRecords(start_id, max_bytes);
  }
  verbena::Task<absl::StatusOr<kv::StoreStats>> Stats() override {
    co_return co_await data_.Stats();
  }

 private:
  DiskScript& script_;
  verbena::Mutex order_;
  kv::MemoryStore data_{size_t{64} << 20};
};

}  // namespace replicated_kv

#endif  // VERBENA_TESTS_EXAMPLES_REPLICATED_KV_SCRIPTED_DISK_H_
