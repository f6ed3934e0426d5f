// Authorization by a token in metadata: a channel sends it, a server checks it.
//
// SendToken adds the caller's token to each call. CheckToken ends a call without a known token
// before its handler runs, and tells the handler whose call it is. Both are constant: any thread.

#ifndef VERBENA_EXAMPLES_INTERCEPTORS_AUTHORIZATION_H_
#define VERBENA_EXAMPLES_INTERCEPTORS_AUTHORIZATION_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "verbena/rpc/interceptor.h"

namespace interceptors {

inline constexpr std::string_view kTokenKey = "token";
// Set by CheckToken; whatever a client sends under this key is removed.
inline constexpr std::string_view kUserKey = "user";

class SendToken final : public verbena::ClientInterceptor {
 public:
  explicit SendToken(std::string token) : token_(std::move(token)) {}

  verbena::Task<absl::Status> Intercept(verbena::ClientCallView& call,
                                        verbena::ClientNext next) override {
    call.metadata.Add(kTokenKey, token_);
    co_return co_await next();
  }

 private:
  const std::string token_;
};

class CheckToken final : public verbena::ServerInterceptor {
 public:
  // By token.
  using Users = std::map<std::string, std::string, std::less<>>;

  explicit CheckToken(Users users) : users_(std::move(users)) {}

  verbena::Task<absl::Status> Intercept(verbena::ServerCallView& call,
                                        verbena::ServerNext next) override {
    call.metadata().Remove(kUserKey);
    const std::optional<std::string_view> token = call.metadata().Get(kTokenKey);
    const auto user = token ? users_.find(*token) : users_.end();
    if (user == users_.end()) co_return absl::UnauthenticatedError("no token that we know");
    call.metadata().Remove(kTokenKey);
    call.metadata().Add(kUserKey, user->second);
    co_return co_await next();
  }

 private:
  const Users users_;
};

}  // namespace interceptors

#endif  // VERBENA_EXAMPLES_INTERCEPTORS_AUTHORIZATION_H_
