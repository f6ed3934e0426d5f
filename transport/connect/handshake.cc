#include "verbena/transport/connect/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "verbena/handshake.pb.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {
namespace {

constexpr uint32_t kMagic = 0x4e425256;  // "VRBN" in little-endian order
constexpr uint32_t kMax24Bits = (1u << 24) - 1;
constexpr size_t kMaxRefusalBytes = 1024;

template <typename... Args>
absl::Status Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(format, std::forward<Args>(args)...));
}

std::string Printable(const std::string& text) { return absl::CHexEscape(text); }

absl::Status CheckMagic(uint32_t magic) {
  if (magic == kMagic) return absl::OkStatus();
  return Invalid("wrong magic {:#010x}, not {:#010x}: the peer does not speak Verbena", magic,
                 kMagic);
}

template <typename Message>
absl::Status Parse(const std::string& bytes, const char* name, Message& message) {
  if (!message.ParseFromString(bytes)) {
    return Invalid("{} bytes that are no {}", bytes.size(), name);
  }
  return CheckMagic(message.magic());
}

absl::StatusOr<LinkKind> ReadKind(wire::LinkKind kind) {
  switch (kind) {
    case wire::LINK_KIND_SOFT:
      return LinkKind::kSoft;
    case wire::LINK_KIND_INFINIBAND:
      return LinkKind::kInfiniBand;
    case wire::LINK_KIND_ROCE:
      return LinkKind::kRoce;
    case wire::LINK_KIND_IWARP:
      return LinkKind::kIwarp;
    case wire::LINK_KIND_ROCE_V1:
      return LinkKind::kRoceV1;
    case wire::LINK_KIND_TCP:
      return LinkKind::kTcp;
    default:
      return Invalid("unknown kind of link {}", static_cast<int>(kind));
  }
}

bool IsMtu(uint32_t bytes) {
  return bytes == 256 || bytes == 512 || bytes == 1024 || bytes == 2048 || bytes == 4096;
}

bool AllZero(const std::string& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

absl::Status CheckAddress(const wire::LinkEnd& end) {
  if (end.gid().size() != 16) return Invalid("gid of {} bytes, not 16", end.gid().size());
  if (end.lid() > 0xffff) return Invalid("lid {} is over 65535", end.lid());
  if (end.kind() == wire::LINK_KIND_TCP && end.lid() == 0) {
    return Invalid("lid 0 is no TCP port: it must be from 1 to 65535");
  }
  if (AllZero(end.gid()) && end.lid() == 0) return Invalid("neither a gid nor a lid");
  return absl::OkStatus();
}

absl::Status CheckQueuePair(const wire::LinkEnd& end) {
  if (end.qp_number() == 0 || end.qp_number() > kMax24Bits) {
    return Invalid("qp_number {} is not from 1 to {}", end.qp_number(), kMax24Bits);
  }
  if (end.packet_sequence_number() > kMax24Bits) {
    return Invalid("packet_sequence_number {} is over {}", end.packet_sequence_number(),
                   kMax24Bits);
  }
  if (!IsMtu(end.mtu_bytes())) {
    return Invalid("mtu_bytes {} is not 256, 512, 1024, 2048 or 4096", end.mtu_bytes());
  }
  if (end.max_reads() > 255) return Invalid("max_reads {} is over 255", end.max_reads());
  return absl::OkStatus();
}

absl::Status CheckLimits(const wire::LinkEnd& end) {
  if (end.name().size() > kMaxPeerNameBytes) {
    return Invalid("name of {} bytes, over {}", end.name().size(), kMaxPeerNameBytes);
  }
  if (end.initial_credits() == 0 || end.initial_credits() > kMaxIssuedCredits) {
    return Invalid("initial_credits {} is not from 1 to {}", end.initial_credits(),
                   kMaxIssuedCredits);
  }
  if (end.eager_bytes() < kMinEagerBytes || end.eager_bytes() > kMaxEagerBytes) {
    return Invalid("eager_bytes {} is not from {} to {}", end.eager_bytes(), kMinEagerBytes,
                   kMaxEagerBytes);
  }
  if (end.executor_count() == 0 || end.executor_count() > kMaxExecutors) {
    return Invalid("executor_count {} is not from 1 to {}", end.executor_count(), kMaxExecutors);
  }
  return absl::OkStatus();
}

absl::Status CheckExecutor(uint32_t index, uint32_t count) {
  if (index < count) return absl::OkStatus();
  return Invalid("executor_index {} is out of range: it must be below {}", index, count);
}

// Every check of a peer's end that does not depend on who sent it.
absl::StatusOr<LinkParameters> ReadEnd(const wire::LinkEnd& end) {
  LinkParameters parameters;
  VERBENA_ASSIGN_OR_RETURN(parameters.kind, ReadKind(end.kind()));
  VERBENA_RETURN_IF_ERROR(CheckAddress(end));
  VERBENA_RETURN_IF_ERROR(CheckQueuePair(end));
  VERBENA_RETURN_IF_ERROR(CheckLimits(end));
  parameters.name = Printable(end.name());
  std::copy(end.gid().begin(), end.gid().end(), parameters.gid.begin());
  parameters.lid = static_cast<uint16_t>(end.lid());
  parameters.qp_number = end.qp_number();
  parameters.packet_sequence_number = end.packet_sequence_number();
  parameters.mtu_bytes = end.mtu_bytes();
  parameters.max_reads = static_cast<uint8_t>(end.max_reads());
  parameters.initial_credits = end.initial_credits();
  parameters.eager_bytes = end.eager_bytes();
  parameters.executor_index = end.executor_index();
  parameters.executor_count = end.executor_count();
  parameters.wire_revision = end.wire_revision();
  return parameters;
}

void WriteEnd(const LinkParameters& parameters, wire::LinkEnd& end) {
  end.set_name(parameters.name.substr(0, kMaxPeerNameBytes));
  end.set_kind(static_cast<wire::LinkKind>(parameters.kind));
  end.set_gid(parameters.gid.data(), parameters.gid.size());
  end.set_lid(parameters.lid);
  end.set_qp_number(parameters.qp_number);
  end.set_packet_sequence_number(parameters.packet_sequence_number);
  end.set_mtu_bytes(parameters.mtu_bytes);
  end.set_max_reads(parameters.max_reads);
  end.set_initial_credits(parameters.initial_credits);
  end.set_eager_bytes(parameters.eager_bytes);
  end.set_executor_index(parameters.executor_index);
  end.set_executor_count(parameters.executor_count);
  end.set_wire_revision(parameters.wire_revision);
}

// Reads what a Hello says beside its end: which executor the client wants, and which runtime it is.
absl::Status ReadClient(const wire::Hello& hello, LinkParameters& offer) {
  if (hello.runtime_id().size() != RuntimeId::kBytes) {
    return Invalid("runtime_id of {} bytes, not {}", hello.runtime_id().size(), RuntimeId::kBytes);
  }
  std::copy(hello.runtime_id().begin(), hello.runtime_id().end(), offer.runtime_id.bytes.begin());
  switch (hello.executor_choice()) {
    case wire::EXECUTOR_CHOICE_ANY:
      offer.executor_choice = ExecutorChoice::kAny;
      break;
    case wire::EXECUTOR_CHOICE_NUMBER:
      offer.executor_choice = ExecutorChoice::kNumber;
      break;
    case wire::EXECUTOR_CHOICE_KEY:
      offer.executor_choice = ExecutorChoice::kKey;
      break;
    default:
      return Invalid("unknown executor_choice {}", static_cast<int>(hello.executor_choice()));
  }
  offer.executor_key = hello.executor_key();
  return absl::OkStatus();
}

absl::StatusOr<RdmaCmService> ReadService(const wire::RdmaCmService& service) {
  if (service.address().size() != 16) {
    return Invalid("rdma_cm address of {} bytes, not 16", service.address().size());
  }
  if (AllZero(service.address())) return Invalid("rdma_cm address of zeros");
  if (service.port() == 0 || service.port() > 0xffff) {
    return Invalid("rdma_cm port {} is not from 1 to 65535", service.port());
  }
  RdmaCmService read;
  std::copy(service.address().begin(), service.address().end(), read.address.begin());
  read.port = static_cast<uint16_t>(service.port());
  read.token = service.token();
  return read;
}

void WriteService(const RdmaCmService& service, wire::RdmaCmService& written) {
  written.set_address(service.address.data(), service.address.size());
  written.set_port(service.port);
  written.set_token(service.token);
}

// What the server says of its methods.
absl::StatusOr<std::vector<OfferedMethod>> ReadMethods(const wire::Acceptance& accepted) {
  const auto count = static_cast<size_t>(accepted.methods_size());
  if (count > kMaxMethods) return Invalid("{} methods, over {}", count, kMaxMethods);
  const std::string& shapes = accepted.method_shapes();
  if (!shapes.empty() && shapes.size() != count) {
    return Invalid("method_shapes of {} bytes for {} methods", shapes.size(), count);
  }
  std::vector<OfferedMethod> methods(count);
  for (size_t i = 0; i < count; ++i) {
    methods[i].id = accepted.methods(static_cast<int>(i));
    if (shapes.empty()) continue;
    methods[i].shape = static_cast<uint8_t>(shapes[i] & OfferedMethod::kShapeBits);
  }
  return methods;
}

void WriteMethods(const std::vector<OfferedMethod>& methods, wire::Acceptance& accepted) {
  VERBENA_CHECK(methods.size() <= kMaxMethods) << methods.size() << " methods";
  bool told = true;
  std::string shapes;
  for (const OfferedMethod& method : methods) {
    accepted.add_methods(method.id);
    shapes.push_back(static_cast<char>(method.shape));
    told = told && method.shape != OfferedMethod::kShapeUntold;
  }
  if (told) accepted.set_method_shapes(std::move(shapes));
}

std::string VersionsText(uint32_t min, uint32_t max) {
  return min == max ? fmt::format("{}", min) : fmt::format("{} to {}", min, max);
}

absl::StatusOr<uint32_t> CommonVersion(const wire::Hello& hello, const HandshakeOptions& options) {
  if (hello.min_version() == 0 || hello.min_version() > hello.max_version()) {
    return Invalid("versions {} to {} are no range", hello.min_version(), hello.max_version());
  }
  const uint32_t version = std::min(hello.max_version(), options.max_version);
  if (version < hello.min_version() || version < options.min_version) {
    return absl::FailedPreconditionError(fmt::format(
        "no common protocol version: the client speaks {}, the server {}; run the same version of "
        "Verbena on both sides",
        VersionsText(hello.min_version(), hello.max_version()),
        VersionsText(options.min_version, options.max_version)));
  }
  return version;
}

absl::Status ReadRefusal(const wire::Refusal& refusal) {
  // Codes of a newer peer, and OK, which would be no refusal.
  const bool known = refusal.code() >= 1 && refusal.code() <= 16;
  const auto code =
      known ? static_cast<absl::StatusCode>(refusal.code()) : absl::StatusCode::kUnknown;
  absl::Status why(code, refusal.message().empty()
                             ? "the peer gave no reason"
                             : Printable(refusal.message().substr(0, kMaxRefusalBytes)));
  if (refusal.retry_after_ms() != 0) {
    const std::chrono::milliseconds wait(refusal.retry_after_ms());
    SetRetryAfter(why, std::min<Duration>(wait, kLongestComeAgain));
  }
  return why;
}

uint32_t RetryAfterMs(const absl::Status& why) {
  const std::optional<Duration> wait = ReadRetryAfter(why);
  if (!wait.has_value()) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(std::min(*wait, kLongestComeAgain));
  return static_cast<uint32_t>(std::max<int64_t>(ms.count(), 1));
}

// `status` with the peer in its message.
absl::Status About(const MessageStream& stream, const char* what, const absl::Status& status) {
  absl::Status about(status.code(),
                     fmt::format("{} {}: {}", what, stream.peer(), std::string(status.message())));
  if (const auto wait = ReadRetryAfter(status)) SetRetryAfter(about, *wait);
  return about;
}

// Whoever cancels knows why there is no link. Every other reason is logged here, because no
// application waits for the handshake of a server.
void LogNoLink(const MessageStream& stream, const absl::Status& why) {
  if (absl::IsCancelled(why)) return;
  const bool ran_out = why == CancelStatus(absl::StatusCode::kDeadlineExceeded);
  VERBENA_LOG_THROTTLED(
      HandshakeLog(), kWarning, Clock::Real().Now(),
      fmt::format("no link with {}: {}", stream.peer(),
                  ran_out ? "the time of the handshake has passed" : why.ToString()),
      {{"peer", stream.peer()}});
}

}  // namespace

const char* LinkKindName(LinkKind kind) {
  switch (kind) {
    case LinkKind::kSoft:
      return "soft";
    case LinkKind::kInfiniBand:
      return "InfiniBand";
    case LinkKind::kRoce:
      return "RoCE v2";
    case LinkKind::kIwarp:
      return "iWARP";
    case LinkKind::kRoceV1:
      return "RoCE v1";
    case LinkKind::kTcp:
      return "tcp";
  }
  return "unknown";
}

std::string EncodeHello(const LinkParameters& mine, const HandshakeOptions& options) {
  VERBENA_CHECK(mine.executor_index < kMaxExecutors) << "executor " << mine.executor_index;
  wire::Hello hello;
  hello.set_magic(kMagic);
  hello.set_min_version(options.min_version);
  hello.set_max_version(options.max_version);
  hello.set_features(options.features);
  WriteEnd(mine, *hello.mutable_end());
  hello.set_runtime_id(mine.runtime_id.bytes.data(), mine.runtime_id.bytes.size());
  hello.set_executor_choice(static_cast<wire::ExecutorChoice>(mine.executor_choice));
  hello.set_executor_key(mine.executor_key);
  return hello.SerializeAsString();
}

absl::StatusOr<LinkParameters> ParseHello(const std::string& bytes,
                                          const HandshakeOptions& options) {
  wire::Hello hello;
  VERBENA_RETURN_IF_ERROR(Parse(bytes, "Hello", hello));
  // First of all: in a version that is not ours the rest may mean something else.
  VERBENA_ASSIGN_OR_RETURN(const uint32_t version, CommonVersion(hello, options));
  VERBENA_ASSIGN_OR_RETURN(LinkParameters offer, ReadEnd(hello.end()));
  VERBENA_RETURN_IF_ERROR(CheckExecutor(offer.executor_index, options.executor_count));
  VERBENA_RETURN_IF_ERROR(ReadClient(hello, offer));
  offer.version = version;
  offer.features = hello.features() & options.features;
  return offer;
}

std::string EncodeAcceptance(const LinkParameters& offer, const LinkParameters& mine) {
  wire::HelloReply reply;
  reply.set_magic(kMagic);
  wire::Acceptance& accepted = *reply.mutable_accepted();
  accepted.set_version(offer.version);
  WriteEnd(mine, *accepted.mutable_end());
  uint64_t features = offer.features;
  if (mine.rdma_cm.port == 0) features &= ~kFeatureRdmaCm;
  if ((features & kFeatureRdmaCm) != 0) WriteService(mine.rdma_cm, *accepted.mutable_rdma_cm());
  accepted.set_features(features);
  WriteMethods(mine.methods, accepted);
  accepted.set_incarnation(mine.incarnation);
  return reply.SerializeAsString();
}

std::string EncodeRefusal(const absl::Status& why) {
  VERBENA_CHECK(!why.ok()) << "a refusal needs a reason";
  wire::HelloReply reply;
  reply.set_magic(kMagic);
  reply.mutable_refused()->set_code(static_cast<uint32_t>(why.code()));
  reply.mutable_refused()->set_message(std::string(why.message()).substr(0, kMaxRefusalBytes));
  reply.mutable_refused()->set_retry_after_ms(RetryAfterMs(why));
  return reply.SerializeAsString();
}

absl::StatusOr<LinkParameters> ParseReply(const std::string& bytes,
                                          const HandshakeOptions& options) {
  wire::HelloReply reply;
  VERBENA_RETURN_IF_ERROR(Parse(bytes, "HelloReply", reply));
  if (reply.has_refused()) return ReadRefusal(reply.refused());
  if (!reply.has_accepted()) return Invalid("a HelloReply that neither accepts nor refuses");
  const wire::Acceptance& accepted = reply.accepted();
  if (accepted.version() < options.min_version || accepted.version() > options.max_version) {
    return Invalid("the server chose version {}, though {} to {} were offered", accepted.version(),
                   options.min_version, options.max_version);
  }
  if ((accepted.features() & ~options.features) != 0) {
    return Invalid("the server chose features {:#x}, though only {:#x} were offered",
                   accepted.features(), options.features);
  }
  VERBENA_ASSIGN_OR_RETURN(LinkParameters answer, ReadEnd(accepted.end()));
  VERBENA_RETURN_IF_ERROR(CheckExecutor(answer.executor_index, answer.executor_count));
  if ((accepted.features() & kFeatureRdmaCm) != 0) {
    VERBENA_ASSIGN_OR_RETURN(answer.rdma_cm, ReadService(accepted.rdma_cm()));
  }
  VERBENA_ASSIGN_OR_RETURN(answer.methods, ReadMethods(accepted));
  answer.incarnation = accepted.incarnation();
  answer.version = accepted.version();
  answer.features = accepted.features();
  return answer;
}

std::string EncodeReady() {
  wire::Ready ready;
  ready.set_magic(kMagic);
  return ready.SerializeAsString();
}

absl::Status ParseReady(const std::string& bytes) {
  wire::Ready ready;
  return Parse(bytes, "Ready", ready);
}

absl::Status CheckConnectable(LinkKind kind, uint64_t features) {
  if (kind != LinkKind::kIwarp || (features & kFeatureRdmaCm) != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "iWARP queue pairs are connected through rdma_cm alone, and the peer does not offer it");
}

absl::Status CheckSameWire(const LinkParameters& mine, const LinkParameters& theirs) {
  if (mine.kind != theirs.kind) {
    return absl::FailedPreconditionError(
        fmt::format("{} and {} queue pairs cannot be connected: choose the same kind of device on "
                    "both sides",
                    LinkKindName(mine.kind), LinkKindName(theirs.kind)));
  }
  if (mine.wire_revision == theirs.wire_revision) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} queue pairs of revisions {} and {} cannot be connected: run the same version "
                  "of Verbena on both sides",
                  LinkKindName(mine.kind), mine.wire_revision, theirs.wire_revision));
}

ThrottledLog& HandshakeLog() {
  static auto* const log = new ThrottledLog(LogComponent::kConnect, {.lines = 8});
  return *log;
}

Task<absl::StatusOr<LinkParameters>> OfferLink(MessageStream& stream, LinkParameters mine,
                                               HandshakeOptions options) {
  const absl::Status sent = co_await stream.Send(EncodeHello(mine, options));
  // A server that makes room refuses before it has heard the Hello, and closes.
  if (!sent.ok() && !absl::IsUnavailable(sent)) co_return sent;
  const absl::StatusOr<std::string> reply = co_await stream.Receive();
  if (!reply.ok()) co_return sent.ok() ? reply.status() : sent;
  absl::StatusOr<LinkParameters> answer = ParseReply(*reply, options);
  if (!answer.ok()) co_return About(stream, "no link with", answer.status());
  if (absl::Status same = CheckSameWire(mine, *answer); !same.ok()) {
    co_return About(stream, "no link with", same);
  }
  co_return answer;
}

Task<absl::Status> ConfirmReady(MessageStream& stream) {
  co_return co_await stream.Send(EncodeReady());
}

Task<absl::StatusOr<LinkParameters>> ReceiveOffer(MessageStream& stream, HandshakeOptions options) {
  absl::StatusOr<std::string> hello = co_await stream.Receive();
  const bool refusable =
      absl::IsInvalidArgument(hello.status()) || ReadRetryAfter(hello.status()).has_value();
  if (!hello.ok() && !refusable) {
    // The peer is gone, or out of time: there is nobody to refuse.
    LogNoLink(stream, hello.status());
    co_return hello.status();
  }
  absl::StatusOr<LinkParameters> offer =
      hello.ok() ? ParseHello(*hello, options) : absl::StatusOr<LinkParameters>(hello.status());
  if (offer.ok()) co_return offer;
  (void)co_await RefuseOffer(stream, offer.status());
  co_return About(stream, "refused", offer.status());
}

Task<absl::Status> AcceptOffer(MessageStream& stream, LinkParameters offer, LinkParameters mine) {
  if (absl::Status same = CheckSameWire(mine, offer); !same.ok()) {
    (void)co_await RefuseOffer(stream, same);
    co_return About(stream, "refused", same);
  }
  co_return co_await stream.Send(EncodeAcceptance(offer, mine));
}

Task<absl::Status> RefuseOffer(MessageStream& stream, absl::Status why) {
  VERBENA_CHECK(!why.ok()) << "a refusal needs a reason";
  LogNoLink(stream, why);
  co_return co_await stream.Send(EncodeRefusal(why));
}

Task<absl::Status> AwaitReady(MessageStream& stream) {
  absl::StatusOr<std::string> ready = co_await stream.Receive();
  absl::Status status = ready.ok() ? ParseReady(*ready) : ready.status();
  if (!status.ok()) LogNoLink(stream, status);
  co_return status;
}

}  // namespace verbena::internal
