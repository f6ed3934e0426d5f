#include "verbena/transport/executor/spawn.h"

#include <exception>
#include <string>
#include <utility>

#include "verbena/transport/executor/root_task.h"
#include "verbena/transport/log/log.h"

namespace verbena {
namespace {

// Owns itself from its launch to the end of its Task.
class SpawnedTask final : public internal::RootTask {
 public:
  explicit SpawnedTask(Task<void> task) : task_(std::move(task)) {}

  void Abandon() override { delete this; }

 private:
  ~SpawnedTask() override = default;

  void StartTask() override { task_.Start(executor(), nullptr, this); }

  void OnTaskDone() override {
    try {
      task_.TakeResult();
    } catch (const std::exception& error) {
      Log(LogLevel::kError, std::string("a spawned task threw: ") + error.what());
    } catch (...) {
      Log(LogLevel::kError, "a spawned task threw what is no std::exception");
    }
    delete this;
  }

  Task<void> task_;
};

}  // namespace

void Spawn(Executor& executor, Task<void> task) {
  (new SpawnedTask(std::move(task)))->Launch(executor);
}

}  // namespace verbena
