// The pages of the admin server, as texts made of a RuntimeReport: Readiness, StatusPage() and
// StatusJson().
//
// Pure functions; any thread.

#ifndef VERBENA_RPC_ADMIN_PAGES_H_
#define VERBENA_RPC_ADMIN_PAGES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/admin.h"
#include "verbena/rpc/shard/report.h"

namespace verbena::internal {

// Whether a process is ready, and why not: AdminOptions says when.
struct Readiness {
  std::vector<std::string> reasons = {};   // why it is not ready; none: it is
  std::vector<std::string> degraded = {};  // what it does without

  bool ready() const { return reasons.empty(); }
  // The text of /readyz: a first word, and a line for each reason and each loss.
  std::string Text() const;
};

// `check` is what AdminOptions::check has returned.
Readiness JudgeReadiness(const RuntimeReport& report, const AdminOptions& options,
                         const absl::Status& check);

// /status: HTML for people. `before`, or nullptr, is an earlier report of the same runtime, from
// which rates are computed.
std::string StatusPage(const RuntimeReport& report, const RuntimeReport* before,
                       const Readiness& readiness);

// /status.json: counts since the start of the process, for programs, which compute rates
// themselves.
std::string StatusJson(const RuntimeReport& report, const Readiness& readiness);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_ADMIN_PAGES_H_
