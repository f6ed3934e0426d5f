#include "verbena/rpc/admin.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "verbena/rpc/admin/accept.h"
#include "verbena/rpc/admin/http.h"
#include "verbena/rpc/admin/pages.h"
#include "verbena/rpc/admin/shared_text.h"
#include "verbena/rpc/log.h"
#include "verbena/rpc/metrics.h"
#include "verbena/rpc/shard/metrics_of.h"
#include "verbena/rpc/shard/report.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/status.h"

namespace verbena {

namespace {

using internal::AdminAnswer;
using internal::AdminDoor;
using internal::AdminHttp;
using internal::AdminLine;
using internal::AdminRequest;
using internal::Readiness;
using internal::RuntimeReport;
using internal::SharedText;
using internal::StatusFacts;

// How long an answer waits for executors that are held.
constexpr Duration kReportPatience = std::chrono::milliseconds(100);
// Rates are those of at least this long.
constexpr Duration kLeastForRates = std::chrono::seconds(1);

// The levels of the log, or a change of them, which the text of a POST asks for.
AdminAnswer LogPage(const AdminRequest& request) {
  if (request.method == "POST") {
    const absl::Status set = SetLogLevels(std::string(absl::StripAsciiWhitespace(request.body)));
    if (!set.ok()) return AdminLine(400, std::string(set.message()));
  }
  return AdminLine(200, LogLevels());
}

}  // namespace

// All but the constructor, the destructor and Heard() runs on the thread of http_.
class Admin::Impl {
 public:
  Impl(Runtime& runtime, const AdminOptions& options)
      : runtime_(runtime), options_(options), reporter_(runtime, [this] { Heard(); }) {}

  // The thread first: it uses all that is left. Executors may be heard until reporter_ is gone.
  ~Impl() {
    if (http_ != nullptr) http_->Stop();
  }

  absl::Status Start() {
    VERBENA_ASSIGN_OR_RETURN(http_, AdminHttp::Listen({.address = options_.address,
                                                       .socket = options_.socket,
                                                       .hosts = options_.hosts}));
    return http_->Serve([this](const AdminRequest& request, const AdminHttp::Reply& reply) {
      Answer(request, reply);
    });
  }

  const std::string& address() const { return http_->address(); }

 private:
  using Reply = AdminHttp::Reply;

  struct Page {
    std::string_view path;
    bool on_network;  // also served at addresses beyond loopback
    bool takes_post;  // on the Unix socket
    void (Impl::*answer)(const AdminRequest& request, const Reply& reply);
  };
  static std::span<const Page> Pages() {
    static constexpr Page kPages[] = {
        {"/healthz", true, false, &Impl::Healthz},
        {"/readyz", true, false, &Impl::Readyz},
        {"/metrics", true, false, &Impl::Scrape},
        {"/status", false, false, &Impl::Status},
        {"/status.json", false, false, &Impl::StatusAsJson},
        {"/log", false, true, &Impl::Levels},
    };
    return kPages;
  }

  // An answer that waits for the executors.
  using Finish = std::function<void(const RuntimeReport& report)>;
  struct Waiting {
    uint64_t number = 0;
    TimePoint asked{};
    bool with_peers = false;
    Finish finish;
  };
  // Requests whose connections have ended wait, too. More than this many get the executors' last
  // values at once. (start)
  static constexpr size_t kMostWaiting = 256;

  void Answer(const AdminRequest& request, const Reply& reply) {
    const bool on_network = request.door == AdminDoor::kNetwork;
    const std::span<const Page> pages = Pages();
    const auto page = std::ranges::find(pages, request.path, &Page::path);
    if (page == pages.end()) return reply(AdminLine(404, NoSuchPage(on_network)));
    if (on_network && !page->on_network) {
      return reply(AdminLine(
          403, fmt::format("{} is served at loopback addresses and on the Unix socket alone, and "
                           "this admin server listens at another address: ask its Unix socket "
                           "(AdminOptions::socket)",
                           page->path)));
    }
    const bool posts = request.method == "POST" && page->takes_post;
    if (posts && request.door != AdminDoor::kSocket) {
      return reply(AdminLine(
          403, fmt::format("POST {} is taken on the Unix socket alone (AdminOptions::socket)",
                           page->path)));
    }
    if (!posts && request.method != "GET") {
      AdminAnswer refusal =
          AdminLine(405, fmt::format("{} takes GET and HEAD{} alone", page->path,
                                     page->takes_post ? ", and on the Unix socket POST," : ""));
      refusal.allow = page->takes_post ? "GET, HEAD, POST" : "GET, HEAD";
      return reply(std::move(refusal));
    }
    (this->*page->answer)(request, reply);
  }

  static std::string NoSuchPage(bool on_network) {
    std::vector<std::string_view> paths;
    for (const Page& page : Pages()) {
      if (page.on_network || !on_network) paths.push_back(page.path);
    }
    return fmt::format("there is no such page, only {}", fmt::join(paths, ", "));
  }

  void Healthz(const AdminRequest&, const Reply& reply) { reply(AdminLine(200, "alive")); }

  void Readyz(const AdminRequest&, const Reply& reply) {
    WithReport(/*with_peers=*/false, [this, reply](const RuntimeReport& report) {
      const Readiness readiness = Judge(report);
      reply({.status = readiness.ready() ? 200 : 503, .body = readiness.Text()});
    });
  }

  void Scrape(const AdminRequest& request, const Reply& reply) {
    const MetricsFormat format = internal::AcceptedFormat(request.accept);
    const auto answer = [this, format, reply](const RuntimeReport& report) {
      const auto write = [&] { return internal::MetricsTextOf(runtime_, format, report); };
      reply({.shared = scrapes_[static_cast<size_t>(format)].Get(Clock::Real().Now(), write),
             .type = std::string(internal::ContentTypeOf(format))});
    };
    WithReport(/*with_peers=*/false, answer);
  }

  void Status(const AdminRequest&, const Reply& reply) {
    WithReport(/*with_peers=*/true, [this, reply](const RuntimeReport& report) {
      const StatusFacts now = FactsOf(report);
      const StatusFacts* before = Earlier(now);
      reply({.body = internal::StatusPage(now, before, Judge(report)),
             .type = "text/html; charset=utf-8"});
    });
  }

  void StatusAsJson(const AdminRequest&, const Reply& reply) {
    WithReport(/*with_peers=*/true, [this, reply](const RuntimeReport& report) {
      reply({.body = internal::StatusJson(FactsOf(report), Judge(report)),
             .type = "application/json"});
    });
  }

  void Levels(const AdminRequest& request, const Reply& reply) { reply(LogPage(request)); }

  Readiness Judge(const RuntimeReport& report) const {
    return internal::JudgeReadiness(report, options_, Check());
  }

  absl::Status Check() const {
    if (options_.check == nullptr) return absl::OkStatus();
    try {
      return options_.check();
    } catch (const std::exception& error) {
      return absl::InternalError(fmt::format("it threw: {}", error.what()));
    } catch (...) {
      return absl::InternalError("it threw");
    }
  }

  StatusFacts FactsOf(const RuntimeReport& report) const {
    return {.report = report, .methods = internal::MethodReportsOf(runtime_)};
  }

  // Earlier facts, from which rates are computed; nullptr: there are none yet.
  const StatusFacts* Earlier(const StatusFacts& now) {
    if (!newer_.has_value()) {
      newer_ = now;
    } else if (now.report.time - newer_->report.time >= kLeastForRates) {
      older_ = std::exchange(newer_, now);
    }
    return older_.has_value() ? &*older_ : nullptr;
  }

  // Calls `finish` once all executors have answered, or kReportPatience is over.
  void WithReport(bool with_peers, Finish finish) {
    const TimePoint asked = Clock::Real().Now();
    reporter_.Ask(with_peers);
    if (reporter_.Answered(asked, with_peers) || waiting_.size() >= kMostWaiting) {
      return finish(reporter_.Read());
    }
    const uint64_t number = ++last_number_;
    waiting_.push_back(
        {.number = number, .asked = asked, .with_peers = with_peers, .finish = std::move(finish)});
    http_->After(kReportPatience, [this, number] {
      FinishIf([number](const Waiting& each) { return each.number == number; });
    });
  }

  // On an executor.
  void Heard() {
    http_->Post([this] {
      FinishIf(
          [this](const Waiting& each) { return reporter_.Answered(each.asked, each.with_peers); });
    });
  }

  template <typename Condition>
  void FinishIf(Condition condition) {
    std::vector<Finish> due;
    std::erase_if(waiting_, [&](Waiting& each) {
      if (!condition(each)) return false;
      due.push_back(std::move(each.finish));
      return true;
    });
    if (due.empty()) return;
    const RuntimeReport report = reporter_.Read();
    for (const Finish& finish : due) finish(report);
  }

  const Runtime& runtime_;
  const AdminOptions options_;
  std::unique_ptr<AdminHttp> http_;  // set before the thread starts; outlives reporter_
  internal::RuntimeReporter reporter_;
  std::vector<Waiting> waiting_;
  uint64_t last_number_ = 0;
  std::array<SharedText, 2> scrapes_;  // by format
  std::optional<StatusFacts> older_;
  std::optional<StatusFacts> newer_;
};

Admin::Admin(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Admin::~Admin() = default;

absl::StatusOr<std::unique_ptr<Admin>> Admin::Start(Runtime& runtime, const AdminOptions& options) {
  auto impl = std::make_unique<Impl>(runtime, options);
  VERBENA_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Admin>(new Admin(std::move(impl)));
}

const std::string& Admin::address() const { return impl_->address(); }

}  // namespace verbena
