// HostCalls: the methods of Host as calls that can be sent to another process.
//
// A call is the method's position in the list below, and its arguments.

#ifndef VERBENA_TESTS_CONFORMANCE_HOST_CALLS_H_
#define VERBENA_TESTS_CONFORMANCE_HOST_CALLS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/conformance/codec.h"
#include "tests/conformance/host.h"

namespace verbena::internal::conformance {

template <auto kMethod>
struct HostMethod;

template <typename ResultType, typename... Arguments, ResultType (Host::*kMethod)(Arguments...)>
struct HostMethod<kMethod> {
  using Result = ResultType;

  static std::string Run(Host& host, Decoder& arguments) {
    // Braces, so that the arguments are read in order.
    std::tuple<Arguments...> values{arguments.Get<Arguments>()...};
    Encoder result;
    result.Put(
        std::apply([&](auto&... value) { return (host.*kMethod)(std::move(value)...); }, values));
    return result.bytes();
  }
};

template <auto... kMethods>
struct HostMethodList {
  template <auto kMethod>
  static constexpr uint32_t IndexOf() {
    constexpr std::array<bool, sizeof...(kMethods)> kSame{
        std::is_same_v<HostMethod<kMethod>, HostMethod<kMethods>>...};
    for (uint32_t index = 0; index < kSame.size(); ++index) {
      if (kSame[index]) return index;
    }
    return kSame.size();
  }

  static std::string Run(Host& host, Decoder& call) {
    using Runner = std::string (*)(Host&, Decoder&);
    static constexpr std::array<Runner, sizeof...(kMethods)> kRunners{
        &HostMethod<kMethods>::Run...};
    return kRunners.at(call.Get<uint32_t>())(host, call);
  }
};

using HostCalls = HostMethodList<
    &Host::Info, &Host::AllocPd, &Host::DeallocPd, &Host::Register, &Host::RegisterAgain,
    &Host::Deregister, &Host::AllocMw, &Host::DeallocMw, &Host::WriteBytes, &Host::ReadBytes,
    &Host::PeekBytes, &Host::CreateChannel, &Host::DestroyChannel, &Host::CreateCq,
    &Host::DestroyCq, &Host::CreateSrq, &Host::ModifySrq, &Host::QuerySrq, &Host::DestroySrq,
    &Host::CreateQp, &Host::ModifyQp, &Host::QueryQp, &Host::DestroyQp, &Host::Quiesced,
    &Host::CmExpect, &Host::CmRequest, &Host::CmJoin, &Host::CmAwaitEstablished, &Host::CmHasEnded,
    &Host::PostSends, &Host::PostReceives, &Host::PostSrqReceives, &Host::Poll, &Host::Await,
    &Host::Arm, &Host::AwaitCqEvent, &Host::AckCqEvents, &Host::AwaitAsyncEvent, &Host::RunPingPong,
    &Host::StartStream, &Host::WatchStream, &Host::StopStream, &Host::Clear>;

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_HOST_CALLS_H_
