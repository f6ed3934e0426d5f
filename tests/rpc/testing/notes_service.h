// NotesService: the service that the tests of verbena/testing.h start. Its calls that take time
// take it from the FakeClock of their runtime.

#ifndef VERBENA_TESTS_RPC_TESTING_NOTES_SERVICE_H_
#define VERBENA_TESTS_RPC_TESTING_NOTES_SERVICE_H_

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/rpc/testing/notes.pb.h"
#include "tests/rpc/testing/notes.verbena.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::testing::notes {

inline Text TextOf(std::string text) {
  Text message;
  message.set_text(std::move(text));
  return message;
}

class NotesService final : public Notes::Service {
 public:
  explicit NotesService(std::string prefix = "") : prefix_(std::move(prefix)) {}

  Task<absl::Status> Echo(ServerContext&, const Text& request, Text& reply) override {
    ++echoes;
    if (request.text().empty()) co_return absl::InvalidArgumentError("the text is empty");
    reply.set_text(prefix_ + request.text());
    co_return absl::OkStatus();
  }

  Task<absl::Status> Wait(ServerContext&, const Text&, Text&) override {
    ++waits;
    co_return co_await SleepOnFakeClock(std::chrono::minutes(5));
  }

  Task<absl::Status> Doze(ServerContext&, const Text&, Text&) override {
    ++waits;
    for (int i = 0; i < 5; ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await SleepOnFakeClock(std::chrono::minutes(1)));
      ++dozed;
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> Fetch(ServerContext& context, const Text& request, Text&) override {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer text,
                                co_await context.AllocateBuffer(request.text().size()));
    std::memcpy(text.data(), request.text().data(), request.text().size());
    context.SetResponsePayload(std::move(text));
    co_return absl::OkStatus();
  }

  Task<absl::Status> Spell(ServerContext&, const Text& request,
                           ServerWriter<Text>& writer) override {
    for (const char c : request.text()) {
      if (c == '!') co_return absl::DataLossError("a '!'");
      VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(TextOf(std::string(1, c))));
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> Join(ServerContext&, ServerReader<Text>& reader, Text& reply) override {
    Text text;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await reader.Read(text));
      if (!read) co_return absl::OkStatus();
      if (text.text().empty()) co_return absl::InvalidArgumentError("a text is empty");
      reply.set_text(reply.text() + text.text());
    }
  }

  Task<absl::Status> Chat(ServerContext&, ServerReaderWriter<Text, Text>& stream) override {
    Text text;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(text));
      if (!read) co_return absl::OkStatus();
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(TextOf(prefix_ + text.text())));
    }
  }

  Task<absl::Status> Words(ServerContext& context, const Text& request,
                           ServerWriter<WithPayload<Text>>& writer) override {
    VERBENA_CO_ASSIGN_OR_RETURN(const Buffer memory, co_await context.AllocateBuffer(4096));
    for (const absl::string_view word : absl::StrSplit(request.text(), ' ')) {
      if (word == "-") {
        VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(TextOf("none")));
        continue;
      }
      std::memcpy(memory.data(), word.data(), word.size());
      VERBENA_CO_RETURN_IF_ERROR(
          co_await writer.Write(TextOf("word"), memory.Slice(0, word.size())));
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> Gather(ServerContext&, ServerReader<WithPayload<Text>>& reader,
                            Text& reply) override {
    WithPayload<Text> text;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await reader.Read(text));
      if (!read) co_return absl::OkStatus();
      reply.mutable_text()->append(
          text.has_payload ? std::string(text.payload.data(), text.payload.size()) : "-");
    }
  }

  Task<absl::Status> Mirror(
      ServerContext&, ServerReaderWriter<WithPayload<Text>, WithPayload<Text>>& stream) override {
    WithPayload<Text> text;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(text));
      if (!read) co_return absl::OkStatus();
      VERBENA_CO_RETURN_IF_ERROR(text.has_payload
                                     ? co_await stream.Write(text.message, text.payload.view())
                                     : co_await stream.Write(text.message));
    }
  }

  std::atomic<int> echoes{0};
  std::atomic<int> waits{0};
  std::atomic<int> dozed{0};

 private:
  static Task<absl::Status> SleepOnFakeClock(Duration delay) {
    const auto& executor = dynamic_cast<Executor&>(*(co_await CurrentContext()).scheduler);
    VERBENA_CHECK(dynamic_cast<FakeClock*>(executor.options().clock) != nullptr)
        << "no test waits by the machine's clock";
    co_return co_await Sleep(delay);
  }

  const std::string prefix_;
};

}  // namespace verbena::testing::notes

#endif  // VERBENA_TESTS_RPC_TESTING_NOTES_SERVICE_H_
