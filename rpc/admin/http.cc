#include "verbena/rpc/admin/http.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/span_body.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/verb.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <list>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {

namespace asio = boost::asio;
namespace http = boost::beast::http;

namespace {

using Error = boost::system::error_code;
using StreamSocket = asio::generic::stream_protocol::socket;

constexpr int kBacklog = 128;
// Connections that one turn takes, so that those which are open are served, too.
constexpr int kAcceptsAtOnce = 64;
// Before accepting again after accept itself failed (no descriptors left, for one).
constexpr Duration kAdminAcceptPause = std::chrono::milliseconds(100);
// Bytes that are read, and dropped, behind a request that was refused as a whole. A socket that is
// closed with bytes unread resets its connection, and the client may never see the answer.
constexpr size_t kDroppedBytes = size_t{64} << 10;
// A page loads nothing, runs no script, and shows in no frame.
constexpr const char* kPagePolicy =
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

absl::StatusOr<UniqueFd> ListenTcp(const std::string& address) {
  VERBENA_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  const std::optional<IpAddress> ip =
      ParseIp(parsed.host == "localhost" ? "127.0.0.1" : parsed.host);
  if (!ip.has_value()) {
    return absl::InvalidArgumentError(fmt::format(
        "AdminOptions::address is \"{}\": its host must be an IP address, such as 0.0.0.0, or "
        "localhost",
        address));
  }
  const SocketAddress at(*ip, parsed.port);
  UniqueFd fd = OpenTcpSocket(at.family());
  if (fd && BindTcpSocket(fd.get(), at) && listen(fd.get(), kBacklog) == 0) return fd;
  const int error = errno;
  const std::string what = "AdminOptions::address, listen on " + address;
  if (error == EADDRINUSE) {
    return absl::FailedPreconditionError(
        fmt::format("{}: the port is taken (EADDRINUSE): choose another one, or port 0", what));
  }
  if (error == EADDRNOTAVAIL) {
    return absl::InvalidArgumentError(
        fmt::format("{}: it is no address of this host (EADDRNOTAVAIL): take one of this host, "
                    "0.0.0.0 or localhost",
                    what));
  }
  return SocketStatus(error, what);
}

// A Unix socket that listens at a path. It removes the path when it ends, unless another file is
// there by then.
class PathListener {
 public:
  PathListener() = default;
  PathListener(PathListener&&) = default;
  PathListener& operator=(PathListener&&) = delete;
  ~PathListener() {
    struct stat now = {};
    if (!fd_ || lstat(path_.c_str(), &now) != 0) return;
    if (now.st_dev == device_ && now.st_ino == inode_) unlink(path_.c_str());
  }

  static absl::StatusOr<PathListener> Listen(const std::string& path) {
    PathListener listener;
    sockaddr_un address{};
    if (path.size() >= sizeof(address.sun_path)) {
      return absl::InvalidArgumentError(
          fmt::format("AdminOptions::socket has {} bytes, but a socket's path has at most {}: {}",
                      path.size(), sizeof(address.sun_path) - 1, path));
    }
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    VERBENA_RETURN_IF_ERROR(RemoveLeftOver(path, address));
    UniqueFd fd = NewSocket();
    // Before bind(), which gives the path the socket's mode: so nobody else may connect meanwhile.
    if (!fd || fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0 ||
        bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      const int error = errno;
      return error == ENOENT || error == ENOTDIR
                 ? absl::NotFoundError(fmt::format("AdminOptions::socket: the directory of {} does "
                                                   "not exist: create it (systemd: "
                                                   "RuntimeDirectory=), or give another path",
                                                   path))
                 : SocketStatus(error, "AdminOptions::socket, bind " + path);
    }
    struct stat made = {};
    if (lstat(path.c_str(), &made) != 0 || listen(fd.get(), kBacklog) != 0) {
      return SocketStatus(errno, "AdminOptions::socket, listen at " + path);
    }
    listener.fd_ = std::move(fd);
    listener.path_ = path;
    listener.device_ = made.st_dev;
    listener.inode_ = made.st_ino;
    return listener;
  }

  // A descriptor of its own for the socket.
  int Duplicate() const { return fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0); }

 private:
  static UniqueFd NewSocket() {
    return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }

  static absl::Status RemoveLeftOver(const std::string& path, const sockaddr_un& address) {
    struct stat there = {};
    if (lstat(path.c_str(), &there) != 0) return absl::OkStatus();  // bind() says what is wrong
    if (!S_ISSOCK(there.st_mode)) {
      return absl::FailedPreconditionError(
          fmt::format("AdminOptions::socket: {} is there already, and is no socket: remove it, or "
                      "give another path",
                      path));
    }
    const UniqueFd probe = NewSocket();
    if (!probe) return SocketStatus(errno, "AdminOptions::socket");
    const bool connected =
        connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    if (connected || errno != ECONNREFUSED) {
      return absl::FailedPreconditionError(fmt::format(
          "AdminOptions::socket: another process listens at {}: give each its own path", path));
    }
    if (unlink(path.c_str()) == 0) return absl::OkStatus();
    return SocketStatus(errno, "AdminOptions::socket, remove " + path);
  }

  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

class HttpConnection;

// What connections have of their server. On its thread.
class HttpConnections {
 public:
  virtual ~HttpConnections() = default;
  virtual const AdminHttpOptions& options() const = 0;
  virtual void OnRequest(const AdminRequest& request, AdminHttp::Reply reply) = 0;
  // It waits for a request, as of now.
  virtual void OnIdle(HttpConnection& connection) = 0;
  virtual void OnClosed(HttpConnection& connection) = 0;
};

// One connection: reads a request, has it answered, writes the answer, and so on. Shared by its
// owner, until it closes, and by its handlers.
class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Place = std::list<std::shared_ptr<HttpConnection>>::iterator;

  HttpConnection(HttpConnections& owner, AdminDoor door, StreamSocket socket)
      : owner_(owner),
        door_(door),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        buffer_(limits().head_bytes + limits().body_bytes) {}

  // Whether no answer to it is being made or written.
  bool idle() const { return idle_; }
  Place place;  // in the owner's list

  void AwaitRequest() {
    idle_ = true;
    owner_.OnIdle(*this);
    parser_.emplace();
    parser_->header_limit(limits().head_bytes);
    parser_->body_limit(limits().body_bytes);
    if (buffer_.size() > 0) return Read();
    StartTimer(limits().idle, &HttpConnection::Close);
    socket_.async_wait(StreamSocket::wait_read, [self = shared_from_this()](const Error& error) {
      if (!error) self->Read();
    });
  }

  // Tells the peer why, if that can be done at once, and not in the midst of an answer.
  void MakeWay() {
    constexpr std::string_view kWhy =
        "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
        "too many connections: this one was idle for longest\n";
    if (!closed_ && !serializer_.has_value()) {
      (void)send(socket_.native_handle(), kWhy.data(), kWhy.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    Close();
  }

  void Close() {
    if (std::exchange(closed_, true)) return;
    timer_.cancel();
    Error ignored;
    socket_.close(ignored);
    owner_.OnClosed(*this);
  }

 private:
  const AdminHttpLimits& limits() const { return owner_.options().limits; }

  void StartTimer(Duration patience, void (HttpConnection::*late)()) {
    timer_.expires_after(patience);
    // A wait that is over by now is not cancelled any more.
    timer_.async_wait([self = shared_from_this(), late, number = ++timers_](const Error& error) {
      if (!error && !self->closed_ && number == self->timers_) (self.get()->*late)();
    });
  }

  void Read() {
    if (closed_) return;
    StartTimer(limits().patience, &HttpConnection::OnLateRequest);
    reading_ = true;
    http::async_read(socket_, buffer_, *parser_,
                     [self = shared_from_this()](const Error& error, size_t) {
                       self->reading_ = false;
                       if (!self->closed_ && !self->refused_) self->OnRead(error);
                     });
  }

  void OnLateRequest() {
    Refuse(408, fmt::format(
                    "the request did not come within {} s",
                    std::chrono::duration_cast<std::chrono::seconds>(limits().patience).count()));
  }

  void OnRead(const Error& error) {
    if (!error) return OnMessage();
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return Refuse(431, fmt::format("the head has more than {} bytes", limits().head_bytes));
    }
    if (error == http::error::body_limit) {
      return Refuse(413, fmt::format("the body has more than {} bytes", limits().body_bytes));
    }
    const bool malformed = error.category() == make_error_code(http::error::bad_method).category();
    if (!malformed || error == http::error::end_of_stream ||
        error == http::error::partial_message) {
      return Close();  // the peer is gone
    }
    Refuse(400, "this is no request of HTTP/1.1: " + error.message());
  }

  void OnMessage() {
    const auto& message = parser_->get();
    head_only_ = message.method() == http::verb::head;
    keep_alive_ = message.keep_alive();
    AdminRequest request{.door = door_,
                         .method = head_only_ ? "GET" : std::string(message.method_string()),
                         .path = std::string(message.target()),
                         .accept = Accepted(),
                         .body = message.body()};
    if (const std::optional<AdminAnswer> refusal = RefuseHost()) {
      keep_alive_ = false;
      return Write(*refusal);
    }
    if (!request.path.starts_with('/')) {
      return Write(AdminLine(400, "the target of the request must begin with \"/\""));
    }
    request.path.resize(std::min(request.path.find('?'), request.path.size()));
    idle_ = false;
    StartTimer(limits().patience, &HttpConnection::Close);
    const uint64_t number = ++requests_;
    owner_.OnRequest(request, [weak = weak_from_this(), number](AdminAnswer answer) {
      const std::shared_ptr<HttpConnection> self = weak.lock();
      if (self == nullptr || self->closed_ || self->answered_ == number) return;
      if (number == self->requests_) self->Write(std::move(answer));
    });
  }

  std::string Accepted() const {
    std::string all;
    const auto [first, last] = parser_->get().equal_range(http::field::accept);
    for (auto each = first; each != last; ++each) {
      if (!all.empty()) all += ',';
      all += std::string_view(each->value().data(), each->value().size());
    }
    return all;
  }

  // Web pages reach only doors of TCP.
  std::optional<AdminAnswer> RefuseHost() const {
    if (door_ == AdminDoor::kSocket) return std::nullopt;
    const auto& message = parser_->get();
    const size_t count = message.count(http::field::host);
    // Probes by HTTP/1.0 have none; browsers always send one.
    if (count == 0 && message.version() < 11) return std::nullopt;
    if (count != 1) return AdminLine(400, fmt::format("the request has {} Host headers", count));
    const std::string_view host = message[http::field::host];
    if (IsOwnHost(host, owner_.options().hosts)) return std::nullopt;
    return AdminLine(
        403,
        "this Host header is not taken: ask by IP address or localhost, or add the name to "
        "AdminOptions::hosts");
  }

  // Answers a request that has not come as a whole, and ends the connection.
  void Refuse(int status, const std::string& why) {
    refused_ = true;
    keep_alive_ = head_only_ = false;
    Write(AdminLine(status, why));
  }

  void Write(AdminAnswer answer) {
    idle_ = false;
    answered_ = requests_;
    StartTimer(limits().patience, &HttpConnection::Close);
    response_ = {};
    response_.version(11);
    response_.result(static_cast<unsigned>(answer.status));
    response_.set(http::field::content_type, answer.type);
    response_.set(http::field::cache_control, "no-store");
    response_.set("X-Content-Type-Options", "nosniff");
    response_.set("Content-Security-Policy", kPagePolicy);
    if (!answer.allow.empty()) response_.set(http::field::allow, answer.allow);
    response_.keep_alive(keep_alive_);
    body_ = answer.shared != nullptr ? std::move(answer.shared)
                                     : std::make_shared<const std::string>(std::move(answer.body));
    response_.body() = {body_->data(), body_->size()};
    response_.prepare_payload();
    serializer_.emplace(response_);
    const auto written = [self = shared_from_this()](const Error& error, size_t) {
      if (!self->closed_) self->OnWritten(error);
    };
    if (head_only_) {
      http::async_write_header(socket_, *serializer_, written);
    } else {
      http::async_write(socket_, *serializer_, written);
    }
  }

  void OnWritten(const Error& error) {
    serializer_.reset();
    response_ = {};
    body_.reset();
    if (error) return Close();
    if (keep_alive_) return AwaitRequest();
    if (reading_) return Close();  // it came too late: nothing is unread
    idle_ = true;
    Error ignored;
    socket_.shutdown(StreamSocket::shutdown_send, ignored);
    Drop();
  }

  // Until the peer closes, or the timer of the answer ends.
  void Drop() {
    buffer_.clear();
    socket_.async_read_some(buffer_.prepare(buffer_.max_size()),
                            [self = shared_from_this()](const Error& error, size_t bytes) {
                              if (self->closed_) return;
                              self->dropped_ += bytes;
                              if (error || self->dropped_ > kDroppedBytes) return self->Close();
                              self->Drop();
                            });
  }

  HttpConnections& owner_;
  const AdminDoor door_;
  StreamSocket socket_;
  asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::shared_ptr<const std::string> body_;  // of response_
  http::response<http::span_body<const char>> response_;
  std::optional<http::response_serializer<http::span_body<const char>>> serializer_;
  uint64_t timers_ = 0;  // that were started
  uint64_t requests_ = 0;
  uint64_t answered_ = 0;  // the number of the last request that was answered
  size_t dropped_ = 0;
  bool idle_ = true;
  bool keep_alive_ = false;
  bool head_only_ = false;
  bool refused_ = false;  // its request did not come as a whole
  bool reading_ = false;
  bool closed_ = false;
};

}  // namespace

AdminAnswer AdminLine(int status, std::string line) {
  line += '\n';
  return {.status = status, .body = std::move(line)};
}

bool IsOwnHost(std::string_view host, const std::vector<std::string>& hosts) {
  std::string_view name = host;
  std::string_view port;
  if (name.starts_with('[')) {
    const size_t end = name.find(']');
    if (end == std::string_view::npos) return false;
    port = name.substr(end + 1);
    name = name.substr(1, end - 1);
  } else if (const size_t colon = name.find(':'); colon != std::string_view::npos) {
    port = name.substr(colon);
    name = name.substr(0, colon);
  }
  if (!port.empty() && (!port.starts_with(':') ||
                        port.find_first_not_of("0123456789", 1) != std::string_view::npos)) {
    return false;
  }
  const std::string text(name);
  return ParseIp(text).has_value() || absl::EqualsIgnoreCase(text, "localhost") ||
         std::ranges::any_of(hosts, [&text](const std::string& each) {
           return absl::EqualsIgnoreCase(text, each);
         });
}

class AdminHttp::Impl final : private HttpConnections {
 public:
  explicit Impl(const AdminHttpOptions& options) : options_(options) {}

  ~Impl() override { Stop(); }

  void Stop() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen() {
    if (options_.address.empty() && options_.socket.empty()) {
      return absl::InvalidArgumentError(
          "AdminOptions have neither an address nor a socket: give at least one");
    }
    if (!options_.address.empty()) {
      VERBENA_ASSIGN_OR_RETURN(UniqueFd fd, ListenTcp(options_.address));
      const SocketAddress bound = SocketAddress::OfSocket(fd.get());
      address_ = bound.text();
      tcp_.emplace(context_, fd.Release());
      tcp_door_ = IsLoopback(bound.ip()) ? AdminDoor::kLoopback : AdminDoor::kNetwork;
      AwaitConnection(*tcp_, tcp_door_);
    }
    if (!options_.socket.empty()) {
      VERBENA_ASSIGN_OR_RETURN(PathListener listener, PathListener::Listen(options_.socket));
      path_.emplace(std::move(listener));
      const int fd = path_->Duplicate();
      if (fd < 0) return SocketStatus(errno, "AdminOptions::socket");
      local_.emplace(context_, fd);
      AwaitConnection(*local_, AdminDoor::kSocket);
    }
    return absl::OkStatus();
  }

  absl::Status Serve(Handler handler) {
    handler_ = std::move(handler);
    try {
      thread_ = StartQuietThread([this] { Run(); });
    } catch (const std::system_error& refused) {
      return absl::ResourceExhaustedError(
          fmt::format("the system starts no thread for the admin server: {}", refused.what()));
    }
    pthread_setname_np(thread_.native_handle(), "verbena-admin");
    return absl::OkStatus();
  }

  const std::string& address() const { return address_; }

  void Post(absl::AnyInvocable<void()> function) { asio::post(context_, std::move(function)); }

  void After(Duration delay, absl::AnyInvocable<void()> function) {
    auto timer = std::make_unique<asio::steady_timer>(context_, delay);
    asio::steady_timer& waits = *timer;
    waits.async_wait(
        [timer = std::move(timer), function = std::move(function)](const Error& error) mutable {
          if (!error) function();
        });
  }

 private:
  void Run() {
    for (;;) {
      try {
        context_.run();
        return;
      } catch (const std::exception& error) {
        VERBENA_LOG_THROTTLED(log_, kError, std::chrono::steady_clock::now(),
                              fmt::format("the admin server drops a request: {}", error.what()));
      }
    }
  }

  // HttpConnections.
  const AdminHttpOptions& options() const override { return options_; }
  void OnRequest(const AdminRequest& request, Reply reply) override {
    handler_(request, std::move(reply));
  }
  void OnIdle(HttpConnection& connection) override {
    connections_.splice(connections_.end(), connections_, connection.place);
  }
  void OnClosed(HttpConnection& connection) override { connections_.erase(connection.place); }

  void AwaitConnection(asio::posix::stream_descriptor& listener, AdminDoor door) {
    listener.async_wait(asio::posix::stream_descriptor::wait_read,
                        [this, &listener, door](const Error& error) {
                          if (!error) Accept(listener, door);
                        });
  }

  void Accept(asio::posix::stream_descriptor& listener, AdminDoor door) {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      absl::StatusOr<AcceptedSocket> accepted =
          AcceptSocket(listener.native_handle(), "the admin server accepts nobody");
      if (accepted.ok()) {
        Welcome(std::move(accepted->fd), door);
      } else if (absl::IsResourceExhausted(accepted.status())) {
        VERBENA_LOG_THROTTLED(log_, kWarning, std::chrono::steady_clock::now(),
                              std::string(accepted.status().message()));
        return After(kAdminAcceptPause,
                     [this, &listener, door] { AwaitConnection(listener, door); });
      } else if (!absl::IsCancelled(accepted.status())) {
        break;
      }
    }
    AwaitConnection(listener, door);
  }

  void Welcome(UniqueFd fd, AdminDoor door) {
    if (connections_.size() >= options_.limits.connections) MakeRoom();
    const int family = SocketAddress::OfSocket(fd.get()).family();
    StreamSocket socket(context_);
    Error error;
    socket.assign(asio::generic::stream_protocol(door == AdminDoor::kSocket ? AF_UNIX : family,
                                                 door == AdminDoor::kSocket ? 0 : IPPROTO_TCP),
                  fd.get(), error);
    if (error) return;
    fd.Release();
    HttpConnections& owner = *this;
    auto connection = std::make_shared<HttpConnection>(owner, door, std::move(socket));
    connection->place = connections_.insert(connections_.end(), connection);
    connection->AwaitRequest();
  }

  // They are in the order in which they began to wait for a request.
  void MakeRoom() {
    VERBENA_LOG_THROTTLED(
        log_, kWarning, std::chrono::steady_clock::now(),
        fmt::format("the admin server has {} connections: a further one takes the place of "
                    "the one that was idle for longest",
                    connections_.size()));
    auto oldest = std::ranges::find_if(
        connections_, [](const std::shared_ptr<HttpConnection>& each) { return each->idle(); });
    if (oldest == connections_.end()) oldest = connections_.begin();
    const std::shared_ptr<HttpConnection> leaves = *oldest;
    leaves->MakeWay();
  }

  const AdminHttpOptions options_;
  Handler handler_;  // set before the thread starts
  std::string address_;
  ThrottledLog log_{LogComponent::kAdmin, {.lines = 1}};
  std::optional<PathListener> path_;
  asio::io_context context_{1};
  // The thread only.
  std::optional<asio::posix::stream_descriptor> tcp_;
  AdminDoor tcp_door_ = AdminDoor::kLoopback;
  std::optional<asio::posix::stream_descriptor> local_;
  std::list<std::shared_ptr<HttpConnection>> connections_;
  std::thread thread_;
};

AdminHttp::AdminHttp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminHttp::~AdminHttp() = default;

absl::StatusOr<std::unique_ptr<AdminHttp>> AdminHttp::Listen(const AdminHttpOptions& options) {
  try {
    auto impl = std::make_unique<Impl>(options);
    VERBENA_RETURN_IF_ERROR(impl->Listen());
    return std::unique_ptr<AdminHttp>(new AdminHttp(std::move(impl)));
  } catch (const std::system_error& refused) {
    return absl::ResourceExhaustedError(
        fmt::format("no descriptor for the admin server: {}", refused.what()));
  }
}

absl::Status AdminHttp::Serve(Handler handler) { return impl_->Serve(std::move(handler)); }
void AdminHttp::Stop() { impl_->Stop(); }
const std::string& AdminHttp::address() const { return impl_->address(); }
void AdminHttp::Post(absl::AnyInvocable<void()> function) { impl_->Post(std::move(function)); }
void AdminHttp::After(Duration delay, absl::AnyInvocable<void()> function) {
  impl_->After(delay, std::move(function));
}

}  // namespace verbena::internal
