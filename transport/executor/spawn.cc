#include "verbena/transport/executor/spawn.h"

#include <utility>

#include "verbena/transport/executor/root_task.h"

namespace verbena::internal {
namespace {

// Owns itself from its launch to the end of its Task.
class SpawnedTask final : public RootTask {
 public:
  explicit SpawnedTask(Task<void> task) : task_(std::move(task)) {}

  void Abandon() override { delete this; }

 private:
  ~SpawnedTask() override = default;

  void StartTask() override { task_.Start(executor(), nullptr, this); }
  void OnTaskDone() override { delete this; }

  Task<void> task_;
};

}  // namespace

void LaunchSpawned(Executor& executor, Task<void> root) {
  (new SpawnedTask(std::move(root)))->Launch(executor);
}

}  // namespace verbena::internal
