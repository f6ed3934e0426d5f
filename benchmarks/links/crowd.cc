#include "verbena/benchmarks/links/crowd.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "fmt/format.h"
#include "verbena/benchmarks/harness/drive.h"

namespace verbena::benchmarks {
namespace {

constexpr std::chrono::minutes kPatience{2};

}  // namespace

bool Crowd::Member::Await(int signal) const {
  char go = 0;
  return crowd_.signals_[static_cast<size_t>(signal)].Read(go);
}

void Crowd::Member::Tell(const absl::Status& done) const {
  const uint64_t now = NowNs();
  if (!done.ok()) fmt::print(stderr, "links_bench: client: {}\n", done.ToString());
  crowd_.events_.Write({.at_ns = now, .well = done.ok()});
}

absl::StatusOr<std::unique_ptr<Crowd>> Crowd::Start(
    int clients, int signals, const std::function<absl::Status(Member& me)>& be) {
  std::unique_ptr<Crowd> crowd(new Crowd(signals));
  for (int i = 0; i < clients; ++i) {
    // ServerProcess waits for an address. A client has none, and says so at once.
    absl::StatusOr<ServerProcess> client =
        ServerProcess::Start("links_bench", [&](const Ready& ready) {
          ready("none");
          Member me(*crowd);
          return be(me);
        });
    if (!client.ok()) return client.status();
    crowd->clients_.push_back(*std::move(client));
  }
  return crowd;
}

uint64_t Crowd::Signal(int signal) const {
  const uint64_t now = NowNs();
  for (size_t i = 0; i < clients_.size(); ++i) signals_[static_cast<size_t>(signal)].Write('g');
  return now;
}

absl::StatusOr<Crowd::Done> Crowd::Await(int count) const {
  Done done;
  for (int i = 0; i < count; ++i) {
    Event event{};
    if (absl::Status read = events_.ReadWithin(event, kPatience); !read.ok()) return read;
    if (event.well) {
      done.times.push_back(event.at_ns);
    } else {
      ++done.failed;
    }
  }
  return done;
}

absl::StatusOr<std::vector<uint64_t>> Crowd::AwaitAll(int count) const {
  absl::StatusOr<Done> done = Await(count);
  if (!done.ok()) return done.status();
  if (done->failed > 0) {
    return absl::InternalError(fmt::format("{} of {} clients failed", done->failed, count));
  }
  return std::move(done->times);
}

absl::Status Crowd::Freeze() const {
  for (const ServerProcess& client : clients_) kill(client.pid(), SIGSTOP);
  for (const ServerProcess& client : clients_) {
    siginfo_t state{};
    // The destructor takes the status of a client that has ended.
    if (waitid(P_PID, static_cast<id_t>(client.pid()), &state, WSTOPPED | WEXITED | WNOWAIT) != 0 ||
        state.si_code != CLD_STOPPED) {
      return absl::InternalError("a client has ended before it could be frozen");
    }
  }
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks
