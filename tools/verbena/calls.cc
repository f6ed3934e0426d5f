#include "tools/verbena/calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "fmt/format.h"
#include "tools/verbena/dynamic_call.h"
#include "tools/verbena/line_source.h"
#include "tools/verbena/message_json.h"
#include "tools/verbena/printable.h"
#include "tools/verbena/remote.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/base/process.h"

namespace verbena::command {
namespace {

absl::Status WriteWhole(int fd, const char* data, size_t bytes, const std::string& path) {
  while (bytes > 0) {
    const ssize_t written = write(fd, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, fmt::format("cannot write {}", path));
    data += written;
    bytes -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status ReadWhole(int fd, char* data, size_t bytes, const std::string& path) {
  while (bytes > 0) {
    const ssize_t got = read(fd, data, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, fmt::format("cannot read {}", path));
    if (got == 0) {
      return absl::FailedPreconditionError(fmt::format("{} became shorter meanwhile", path));
    }
    data += got;
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<Metadata> ParseMetadata(const std::vector<std::string>& entries) {
  Metadata metadata;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("--metadata '{}' has no '=': write KEY=VALUE", entry));
    }
    const std::string key = entry.substr(0, equals);
    std::string value = entry.substr(equals + 1);
    if (key.ends_with("-bin") && !absl::Base64Unescape(std::string(value), &value)) {
      return absl::InvalidArgumentError(
          fmt::format("--metadata '{}': the value of a key that ends in -bin is base64", entry));
    }
    metadata.Add(key, value);
  }
  if (!metadata.status().ok()) return metadata.status();
  return metadata;
}

// CallCommand: the command `call`, once its method is known.
//
// Lives on the stack of its Task, on the executor's thread.
class CallCommand {
 public:
  CallCommand(Channel& channel, const CallArguments& arguments, Deadline deadline,
              Terminal& terminal, LineSource& source, Metadata metadata)
      : channel_(channel),
        arguments_(arguments),
        deadline_(deadline),
        terminal_(terminal),
        source_(source),
        metadata_(std::move(metadata)) {}

  Task<absl::Status> Run() {
    const MethodName name = SplitMethodName(arguments_.method, true);
    VERBENA_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Schema> schema,
                                co_await FetchSchema(channel_, name.service, deadline_));
    absl::StatusOr<std::unique_ptr<DynamicMethod>> method =
        schema->Method(name.service, name.method);
    if (!method.ok()) {
      co_return absl::IsNotFound(method.status()) ? Mistake(method.status()) : method.status();
    }
    method_ = method->get();
    VERBENA_CO_RETURN_IF_ERROR(Mistake(CheckPayloads()));
    absl::Status status;
    if (method_->descriptor.streams == Streams::kNone) {
      status = co_await Unary();
    } else {
      status = co_await Streaming();
    }
    if (arguments_.verbose && !IsMistake(status)) Report();
    co_return status;
  }

 private:
  bool client_streams() const {
    return method_->descriptor.streams == Streams::kClient ||
           method_->descriptor.streams == Streams::kBoth;
  }
  bool server_streams() const {
    return method_->descriptor.streams == Streams::kServer ||
           method_->descriptor.streams == Streams::kBoth;
  }

  absl::Status CheckPayloads() {
    if (!arguments_.payloads.empty() && !method_->descriptor.request_payload()) {
      return absl::InvalidArgumentError(
          fmt::format("{} takes no payload: its option (verbena.method) has no request_payload",
                      method_->full_name));
    }
    if (arguments_.payloads.size() > 1 && !client_streams()) {
      return absl::InvalidArgumentError(
          fmt::format("{} takes one message, and so one --payload", method_->full_name));
    }
    if (arguments_.payload_out.empty()) return absl::OkStatus();
    if (!method_->descriptor.response_payload()) {
      return absl::InvalidArgumentError(
          fmt::format("{} sends no payload: its option (verbena.method) has no response_payload",
                      method_->full_name));
    }
    const char* path = arguments_.payload_out.c_str();
    out_.emplace(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (*out_) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, fmt::format("cannot open {}", path));
  }

  CallOptions Options() {
    CallOptions options;
    options.deadline = deadline_;
    options.info = &info_;
    options.metadata = metadata_;
    options.wait_for_ready = arguments_.wait;
    return options;
  }

  // Fills `message` from `text`. The failure names the place, as compilers do.
  absl::Status Parse(std::string_view text, uint32_t line, DynamicMessage& message) {
    absl::Status parsed = ParseMessage(text, line, *message.message);
    if (parsed.ok()) return parsed;
    return Mistake(absl::InvalidArgumentError(
        fmt::format("{}:{}", source_.name(), std::string(parsed.message()))));
  }

  // The next file of --payload, if any is left.
  Task<absl::Status> AddPayload(DynamicMessage& message) {
    if (next_payload_ == arguments_.payloads.size()) co_return absl::OkStatus();
    const std::string& path = arguments_.payloads[next_payload_++];
    const internal::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat about{};
    if (!file || fstat(file.get(), &about) != 0) {
      co_return Mistake(absl::ErrnoToStatus(errno, fmt::format("cannot open {}", path)));
    }
    const auto bytes = static_cast<size_t>(about.st_size);
    if (!S_ISREG(about.st_mode) || bytes > LinkLimits().max_payload_bytes) {
      co_return Mistake(absl::InvalidArgumentError(
          fmt::format("{} is no file of at most {} bytes, which a payload must be", path,
                      LinkLimits().max_payload_bytes)));
    }
    message.has_payload = true;
    if (bytes == 0) co_return absl::OkStatus();
    VERBENA_CO_ASSIGN_OR_RETURN(message.payload, co_await channel_.AllocateBuffer(bytes));
    co_return Mistake(ReadWhole(file.get(), message.payload.data(), bytes, path));
  }

  // Prints a message of the server's, and keeps its payload.
  absl::Status Show(const DynamicMessage& message) {
    VERBENA_ASSIGN_OR_RETURN(
        const std::string text,
        PrintMessage(*message.message, arguments_.pretty, arguments_.defaults));
    // One line, unless it is pretty: JSON escapes the line breaks of strings.
    terminal_.output << Printable(text, LineBreaks::kKeep) << std::endl;
    if (!message.has_payload) return absl::OkStatus();
    if (!out_.has_value()) {
      terminal_.error << fmt::format(
          "verbena: a payload of {} bytes came, too: --payload-out FILE keeps it\n",
          message.payload.size());
      return absl::OkStatus();
    }
    return WriteWhole(out_->get(), message.payload.data(), message.payload.size(),
                      arguments_.payload_out);
  }

  // The only message of the client.
  Task<absl::Status> ReadRequest(DynamicMessage& request) {
    absl::StatusOr<std::string> text = co_await RunBlocking([this] { return source_.All(); });
    if (!text.ok()) co_return Mistake(text.status());
    VERBENA_CO_RETURN_IF_ERROR(Parse(*text, 1, request));
    co_return co_await AddPayload(request);
  }

  Task<absl::Status> Unary() {
    DynamicMessage request(*method_->request);
    DynamicMessage reply(*method_->reply);
    VERBENA_CO_RETURN_IF_ERROR(co_await ReadRequest(request));
    CallOptions options = Options();
    if (request.has_payload) {
      options.request_payload =
          request.payload.size() == 0 ? Payload::Empty() : Payload(std::move(request.payload));
    }
    VERBENA_CO_RETURN_IF_ERROR(
        co_await DynamicCall(channel_, *method_, *request.message, reply, std::move(options)));
    co_return Show(reply);
  }

  Task<absl::Status> Streaming() {
    DynamicMessage request(*method_->request);
    if (!client_streams()) {
      VERBENA_CO_RETURN_IF_ERROR(co_await ReadRequest(request));
    }
    DynamicStream stream(channel_, *method_, *request.message, Options());
    DynamicMessage reply(*method_->reply);
    bool read_reply = false;
    absl::Status shown;
    TaskScope reading(co_await CurrentContext());
    reading.Spawn(server_streams() ? ShowAll(stream, shown)
                                   : AwaitReply(stream, reply, read_reply));
    absl::Status written;
    if (client_streams()) {
      written = co_await WriteAll(stream);
      // What the user wrote is wrong: destroying the stream gives the call up.
      if (!written.ok()) reading.RequestCancel();
    }
    co_await reading.Join();
    VERBENA_CO_RETURN_IF_ERROR(written);
    VERBENA_CO_RETURN_IF_ERROR(shown);
    if (server_streams()) co_return co_await stream.Finish();
    // A large reply comes as a message, which AwaitReply() has taken; a small one is in the
    // response.
    if (read_reply) {
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Finish());
    } else {
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Finish(*reply.message));
    }
    co_return Show(reply);
  }

  // Waits beside the writes for the end of the call, be it a reply, a failure or the deadline.
  // Finish() could not: it ends the writes.
  Task<void> AwaitReply(DynamicStream& stream, DynamicMessage& reply, bool& read_reply) {
    read_reply = co_await stream.Read(reply);
    source_.Stop();
  }

  Task<void> ShowAll(DynamicStream& stream, absl::Status& shown) {
    DynamicMessage message(*method_->reply);
    while (co_await stream.Read(message)) {
      shown = Show(message);
      if (!shown.ok()) break;
      message.message->Clear();
    }
    // The call has ended, so nobody wants the rest of the input.
    source_.Stop();
  }

  Task<absl::Status> WriteAll(DynamicStream& stream) {
    std::string line;
    for (;;) {
      absl::StatusOr<bool> more =
          co_await RunBlocking([this, &line] { return source_.Next(line); });
      if (!more.ok()) co_return Mistake(more.status());
      if (!*more) break;
      DynamicMessage message(*method_->request);
      VERBENA_CO_RETURN_IF_ERROR(Parse(line, source_.line_number(), message));
      VERBENA_CO_RETURN_IF_ERROR(co_await AddPayload(message));
      // Finish() says why it failed.
      if (!(co_await stream.Write(message)).ok()) co_return absl::OkStatus();
    }
    (void)co_await stream.WritesDone();
    co_return absl::OkStatus();
  }

  void Report() const {
    const double ms = std::chrono::duration<double, std::milli>(info_.elapsed).count();
    terminal_.error << fmt::format("{:.3f} ms; request {} bytes, reply {} bytes\n", ms,
                                   info_.request_bytes, info_.reply_bytes);
    for (const auto& [key, value] : info_.trailing_metadata) {
      const bool binary = key.ends_with("-bin");
      terminal_.error << fmt::format(
          "{}: {}\n", Printable(key),
          binary ? absl::Base64Escape(absl::string_view(value.data(), value.size()))
                 : Printable(value));
    }
  }

  Channel& channel_;
  const CallArguments& arguments_;
  const Deadline deadline_;
  Terminal& terminal_;
  LineSource& source_;
  const Metadata metadata_;
  const DynamicMethod* method_ = nullptr;
  std::optional<internal::UniqueFd> out_;
  size_t next_payload_ = 0;  // of the arguments' payloads
  CallInfo info_;
};

Task<absl::StatusOr<int>> Call(Channel& channel, const CallArguments& arguments, Deadline deadline,
                               Terminal& terminal) {
  absl::StatusOr<Metadata> metadata = ParseMetadata(arguments.metadata);
  if (!metadata.ok()) co_return Mistake(metadata.status());
  absl::StatusOr<std::unique_ptr<LineSource>> source =
      LineSource::Open(arguments.json, terminal.input);
  if (!source.ok()) co_return Mistake(source.status());
  CallCommand command(channel, arguments, deadline, terminal, **source, *std::move(metadata));
  VERBENA_CO_RETURN_IF_ERROR(co_await command.Run());
  co_return 0;
}

Task<absl::StatusOr<int>> List(Channel& channel, const ListArguments& arguments, Deadline deadline,
                               Terminal& terminal) {
  VERBENA_CO_ASSIGN_OR_RETURN(const reflection::v1::ListReply list,
                              co_await ListServices(channel, deadline));
  for (const auto& service : list.services()) {
    const std::string name = Printable(service.name());
    if (!arguments.methods) terminal.output << name << "\n";
    for (int i = 0; arguments.methods && i < service.methods_size(); ++i) {
      terminal.output << name << "/" << Printable(service.methods(i)) << "\n";
    }
  }
  terminal.output.flush();
  if (list.methods_left_out() > 0) {
    terminal.error << fmt::format("verbena: {} more methods did not fit the answer\n",
                                  list.methods_left_out());
  }
  co_return 0;
}

Task<absl::StatusOr<int>> Describe(Channel& channel, const NameArguments& arguments,
                                   Deadline deadline, Terminal& terminal) {
  const MethodName name = SplitMethodName(arguments.name, false);
  VERBENA_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Schema> schema,
                              co_await FetchSchema(channel, name.service, deadline));
  const absl::StatusOr<std::string> text = schema->Text(arguments.name);
  if (!text.ok()) co_return Mistake(text.status());
  terminal.output << Printable(*text, LineBreaks::kKeep) << std::flush;
  co_return 0;
}

Task<absl::StatusOr<int>> Health(Channel& channel, const NameArguments& arguments,
                                 Deadline deadline, Terminal& terminal) {
  VERBENA_CO_ASSIGN_OR_RETURN(const bool serving,
                              co_await CheckHealth(channel, arguments.name, deadline));
  terminal.output << (serving ? "SERVING" : "NOT_SERVING") << std::endl;
  co_return serving ? 0 : kNotServing;
}

}  // namespace

absl::StatusOr<Deadline> ParseDeadline(const std::string& text) {
  if (text == "none") return Deadline::None();
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string_view unit = end;
  for (const auto& [name, ns] : std::initializer_list<std::pair<std::string_view, double>>{
           {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}}) {
    if (unit == name && end != text.c_str() && number > 0 && number * ns < 1e18) {
      return Deadline(std::chrono::nanoseconds(static_cast<int64_t>(std::ceil(number * ns))));
    }
  }
  return Mistake(absl::InvalidArgumentError(fmt::format(
      "--deadline '{}' is no time: write 'none', or a number above 0 with us, ms, s, m or h, as "
      "in 500ms",
      text)));
}

absl::StatusOr<std::unique_ptr<Runtime>> StartRuntime(const std::string& device) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start({.device = device});
  if (!runtime.ok()) return Mistake(runtime.status());
  return runtime;
}

int Fail(const absl::Status& status, Terminal& terminal) {
  // A server's text, perhaps.
  const std::string text = Printable({status.message().data(), status.message().size()});
  if (IsMistake(status)) {
    terminal.error << "verbena: " << text << std::endl;
    return kMistake;
  }
  terminal.error << fmt::format("verbena: {}: {} ({})", absl::StatusCodeToString(status.code()),
                                text, OutcomeName(OutcomeOf(status)))
                 << std::endl;
  return kFailedCall + static_cast<int>(status.code());
}

int RunCall(const CallArguments& arguments, Terminal& terminal) {
  return RunOnChannel(arguments, terminal, &Call);
}

int RunList(const ListArguments& arguments, Terminal& terminal) {
  return RunOnChannel(arguments, terminal, &List);
}

int RunDescribe(const NameArguments& arguments, Terminal& terminal) {
  return RunOnChannel(arguments, terminal, &Describe);
}

int RunHealth(const NameArguments& arguments, Terminal& terminal) {
  return RunOnChannel(arguments, terminal, &Health);
}

}  // namespace verbena::command
