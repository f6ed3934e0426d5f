// FakeDirectory: a shard's state as etcd would keep it, in memory. The test says when it answers,
// and whether an answer is lost, or is an old one.

#ifndef VERBENA_TESTS_EXAMPLES_REPLICATED_KV_FAKE_DIRECTORY_H_
#define VERBENA_TESTS_EXAMPLES_REPLICATED_KV_FAKE_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/shard_directory.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

class FakeDirectory final : public ShardDirectory {
 public:
  explicit FakeDirectory(SeenState first) : now(std::move(first)) { answers.Set(); }

  verbena::Task<absl::StatusOr<SeenState>> Replace(SeenState seen, ShardState next,
                                                   int64_t lease) override {
    ++requests;
    VERBENA_CO_RETURN_IF_ERROR(co_await answers.Wait());
    if (lost_requests > 0) {
      --lost_requests;
      co_return absl::UnavailableError("the request is lost");
    }
    if (seen.revision == now.revision && lease == now.holder_lease) {
      now.state = std::move(next);
      ++now.revision;
    }
    if (lost_answers > 0) {
      --lost_answers;
      co_return absl::UnavailableError("the answer is lost");
    }
    if (stale.has_value()) co_return *std::exchange(stale, std::nullopt);
    co_return now;
  }

  SeenState now;
  verbena::Event answers;               // while it is set
  std::optional<SeenState> stale = {};  // the next answer
  int lost_requests = 0;                // the next ones
  int lost_answers = 0;
  int requests = 0;  // so far
};

}  // namespace replicated_kv

#endif  // VERBENA_TESTS_EXAMPLES_REPLICATED_KV_FAKE_DIRECTORY_H_
