#include "tools/verbena/admin_client.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/verb.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"

namespace verbena::command {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

using internal::HostPort;
using internal::IpAddress;
using internal::NameAnswer;
using internal::NameLookups;
using internal::ParseHostPort;
using internal::ParseIp;
using internal::SocketAddress;

using AdminEndpoint = asio::generic::stream_protocol::endpoint;
using AdminError = boost::system::error_code;
using AdminDeadline = std::chrono::steady_clock::time_point;

absl::StatusOr<AdminEndpoint> SocketEndpoint(const std::string& path) {
  sockaddr_un at{};
  if (path.empty() || path.size() >= sizeof(at.sun_path)) {
    return absl::InvalidArgumentError(
        fmt::format("'unix:{}': the path of a Unix socket has 1 to {} bytes, this one has {}", path,
                    sizeof(at.sun_path) - 1, path.size()));
  }
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path, path.data(), path.size());
  return AdminEndpoint(&at, sizeof(at));
}

// Waits until `until` at most, and leaves a look-up behind that takes longer.
NameAnswer LookUpUntil(const std::string& host, AdminDeadline until, NameLookups& lookups) {
  const auto answer = std::make_shared<std::promise<NameAnswer>>();
  std::future<NameAnswer> found = answer->get_future();
  lookups.Start(host, [answer](const NameAnswer& each) { answer->set_value(each); });
  if (found.wait_until(until) == std::future_status::ready) return found.get();
  return {.code = absl::StatusCode::kDeadlineExceeded,
          .why = fmt::format("looking up {} takes too long", host)};
}

// Where `admin` may listen: a name may have several addresses.
absl::StatusOr<std::vector<AdminEndpoint>> EndpointsOf(const std::string& admin,
                                                       AdminDeadline until, NameLookups& lookups) {
  constexpr std::string_view kUnix = "unix:";
  if (admin.starts_with(kUnix)) {
    VERBENA_ASSIGN_OR_RETURN(const AdminEndpoint at, SocketEndpoint(admin.substr(kUnix.size())));
    return std::vector<AdminEndpoint>{at};
  }
  const absl::StatusOr<HostPort> parsed = ParseHostPort(admin);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is no admin server: give host:port of AdminOptions::address, or unix:PATH with the "
        "path of AdminOptions::socket",
        admin));
  }
  if (const std::optional<IpAddress> ip = ParseIp(parsed->host)) {
    const SocketAddress at(*ip, parsed->port);
    return std::vector<AdminEndpoint>{AdminEndpoint(at.get(), at.size())};
  }
  const NameAnswer answer = LookUpUntil(parsed->host, until, lookups);
  std::vector<AdminEndpoint> endpoints;
  for (SocketAddress at : answer.addresses) {
    at.set_port(parsed->port);
    endpoints.emplace_back(at.get(), at.size());
  }
  if (!endpoints.empty()) return endpoints;
  const bool is_late = answer.code == absl::StatusCode::kDeadlineExceeded;
  return absl::Status(is_late ? answer.code : absl::StatusCode::kUnavailable,
                      fmt::format("'{}': host {} has no address ({}): give its IP address", admin,
                                  parsed->host, answer.why));
}

absl::Status FailureOf(const AdminError& error, const std::string& admin, bool connected,
                       const AdminLimits& limits) {
  if (error == beast::error::timeout) {
    return absl::DeadlineExceededError(
        fmt::format("{} did not answer within {} ms: is its process stopped, or is something else "
                    "at this address?",
                    admin, limits.timeout.count()));
  }
  if (error == http::error::body_limit) {
    return absl::ResourceExhaustedError(
        fmt::format("the answer of {} has more than {} bytes, the most that are read: is it the "
                    "address of an admin server?",
                    admin, limits.max_bytes));
  }
  if (!connected) {
    return absl::UnavailableError(
        fmt::format("no admin server is to be reached at {} ({}): is its process up, and is this "
                    "its AdminOptions::address or socket?",
                    admin, error.message()));
  }
  return absl::FailedPreconditionError(
      fmt::format("{} does not answer as an admin server does ({}): give the address of "
                  "AdminOptions, not that of a Server",
                  admin, error.message()));
}

// One request, at one of the addresses of `admin`.
absl::StatusOr<std::string> AskAt(const AdminEndpoint& at, const std::string& admin,
                                  const std::string& page, const AdminLimits& limits,
                                  AdminDeadline until) {
  http::request<http::empty_body> request(http::verb::get, page, 11);
  // A name that every admin server takes, whatever its own is.
  request.set(http::field::host, "localhost");
  request.set(http::field::connection, "close");
  http::response_parser<http::string_body> parser;
  parser.body_limit(limits.max_bytes);
  beast::flat_buffer buffer;
  AdminError failed;
  bool connected = false;
  asio::io_context context(1);
  beast::basic_stream<asio::generic::stream_protocol> stream(context);
  // One time for all of it: a server that sends a byte now and then gains nothing.
  stream.expires_at(until);
  const auto read = [&](const AdminError& error, size_t) { failed = error; };
  const auto written = [&](const AdminError& error, size_t) {
    failed = error;
    if (!error) http::async_read(stream, buffer, parser, read);
  };
  stream.async_connect(at, [&](const AdminError& error) {
    failed = error;
    connected = !error;
    if (connected) http::async_write(stream, request, written);
  });
  context.run();
  if (failed) return FailureOf(failed, admin, connected, limits);
  if (parser.get().result() != http::status::ok) {
    std::string said = parser.get().body();
    while (!said.empty() && said.back() == '\n') said.pop_back();
    return absl::FailedPreconditionError(
        fmt::format("{} refuses {}: {} {}", admin, page, parser.get().result_int(), said));
  }
  return std::move(parser.get().body());
}

}  // namespace

absl::StatusOr<std::string> AskAdmin(const std::string& admin, const std::string& page,
                                     const AdminLimits& limits, NameLookups& lookups) {
  const AdminDeadline until = std::chrono::steady_clock::now() + limits.timeout;
  VERBENA_ASSIGN_OR_RETURN(const std::vector<AdminEndpoint> endpoints,
                           EndpointsOf(admin, until, lookups));
  absl::StatusOr<std::string> answer = absl::UnavailableError(admin);
  for (const AdminEndpoint& at : endpoints) {
    answer = AskAt(at, admin, page, limits, until);
    if (!absl::IsUnavailable(answer.status())) break;
  }
  return answer;
}

}  // namespace verbena::command
