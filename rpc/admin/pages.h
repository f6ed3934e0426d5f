// The pages of the admin server, as texts: Readiness, made of a RuntimeReport; StatusPage() and
// StatusJson(), of StatusFacts.
//
// Pure functions; any thread.

#ifndef VERBENA_RPC_ADMIN_PAGES_H_
#define VERBENA_RPC_ADMIN_PAGES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/admin.h"
#include "verbena/rpc/shard/call_report.h"
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

// What the pages of the status are made of.
struct StatusFacts {
  RuntimeReport report = {};
  std::vector<MethodReport> methods = {};
};

// /status: HTML for people. `before`, or nullptr, are earlier facts of the same runtime: rates,
// p50 and p99 are those since then. Without them there are no rates, and p50 and p99 are those
// since the start.
std::string StatusPage(const StatusFacts& now, const StatusFacts* before,
                       const Readiness& readiness);

// /status.json: counts and times since the start of the process, for programs, which compute rates
// themselves.
std::string StatusJson(const StatusFacts& now, const Readiness& readiness);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_ADMIN_PAGES_H_
