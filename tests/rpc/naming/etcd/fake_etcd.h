// FakeEtcd: an etcd in the test's thread, which answers at once: keys with revisions, watches, and
// one lease. The test says when it is gone, silent or talks garbage.

#ifndef VERBENA_TESTS_RPC_NAMING_ETCD_FAKE_ETCD_H_
#define VERBENA_TESTS_RPC_NAMING_ETCD_FAKE_ETCD_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/etcd/http.h"
#include "verbena/transport/coro/mailbox.h"

namespace verbena::internal {

class FakeEtcd final {
 public:
  // The part of an exchange that the test sees.
  struct Exchange {
    std::string path;
    std::string body;
    std::string token;
    std::shared_ptr<Mailbox<EtcdAnswer>> answers = std::make_shared<Mailbox<EtcdAnswer>>();
    bool given_up = false;
    bool avoided = false;

    void Answer(std::string text, int status = 200) {
      answers->Push(
          {.http_status = status, .text = std::move(text), .endpoint = "fake:1", .sent = true});
    }
    void Fail(std::string why, bool sent = false) {
      answers->Push({.text = std::move(why), .endpoint = "fake:1", .sent = sent});
    }
  };

  std::unique_ptr<EtcdWire> Wire() { return std::make_unique<FakeWire>(*this); }

  void Put(const std::string& key, const std::string& value) {
    keys[key] = {value, ++revision};
    Tell(fmt::format(R"({{"kv":{{"key":"{}","value":"{}","mod_revision":"{}"}}}})",
                     absl::Base64Escape(key), absl::Base64Escape(value), revision));
  }
  void Delete(const std::string& key) {
    keys.erase(key);
    ++revision;
    Tell(fmt::format(R"({{"type":"DELETE","kv":{{"key":"{}","mod_revision":"{}"}}}})",
                     absl::Base64Escape(key), revision));
  }
  // The watch that is open; nullptr: none.
  Exchange* watch() {
    return watches.empty() || watches.back()->given_up ? nullptr : watches.back().get();
  }
  int Count(std::string_view path) const {
    return static_cast<int>(std::count(paths.begin(), paths.end(), path));
  }

  std::map<std::string, std::pair<std::string, int64_t>> keys;  // value and mod_revision
  int64_t revision = 10;
  bool gone = false;
  bool silent = false;                             // watches say nothing
  bool mute = false;                               // requests are kept in `unanswered`
  std::string answer;                              // not empty: answers each request
  int answer_status = 200;                         // of HTTP, with `answer`
  bool lease_alive = false;                        // of the one lease, whose id is `leases`
  int leases = 0;                                  // granted so far
  int64_t holder = 0;                              // the lease of a key that was put with one
  std::vector<std::shared_ptr<Exchange>> watches;  // all that there were
  std::vector<std::shared_ptr<Exchange>> unanswered;
  std::vector<std::string> paths;  // of all requests
  std::string last_body;
  std::string password;  // not empty: demands a login with it
  int logins = 0;        // the last one's token is the one that counts
  int watches_refused = 0;
  // What a watch hears whose token does not count.
  std::string refusal = "etcdserver: invalid auth token";

 private:
  class FakeExchange final : public EtcdExchange {
   public:
    explicit FakeExchange(std::shared_ptr<Exchange> shared) : shared_(std::move(shared)) {}
    ~FakeExchange() override { shared_->given_up = true; }
    Mailbox<EtcdAnswer>& answers() override { return *shared_->answers; }
    void Took(size_t) override {}
    void Avoid() override { shared_->avoided = true; }

   private:
    const std::shared_ptr<Exchange> shared_;
  };

  class FakeWire final : public EtcdWire {
   public:
    explicit FakeWire(FakeEtcd& etcd) : etcd_(etcd) {}
    std::unique_ptr<EtcdExchange> Post(EtcdRequest request) override {
      auto exchange = std::make_shared<Exchange>();
      exchange->path = request.path;
      exchange->body = request.body;
      exchange->token = request.token;
      etcd_.Serve(exchange);
      return std::make_unique<FakeExchange>(std::move(exchange));
    }

   private:
    FakeEtcd& etcd_;
  };

  std::string Header() const { return fmt::format(R"("header":{{"revision":"{}"}})", revision); }

  void Tell(const std::string& event) {
    if (silent || watch() == nullptr) return;
    watch()->Answer(fmt::format(R"({{"result":{{{},"events":[{}]}}}})", Header(), event));
  }

  void Serve(const std::shared_ptr<Exchange>& exchange) {
    paths.push_back(exchange->path);
    last_body = exchange->body;
    if (gone) return exchange->Fail("cannot connect");
    if (mute) return unanswered.push_back(exchange);
    if (!answer.empty()) return exchange->Answer(answer, answer_status);
    if (exchange->path == "/v3/auth/authenticate") return LogIn(*exchange);
    if (!password.empty() && exchange->token != Token()) {
      if (exchange->path == "/v3/watch") return RefuseWatch(*exchange);
      return exchange->Answer(R"({"code":16,"message":"etcdserver: invalid auth token"})", 401);
    }
    if (exchange->path == "/v3/watch") {
      watches.push_back(exchange);
      exchange->Answer(fmt::format(R"({{"result":{{{},"created":true}}}})", Header()));
    } else if (exchange->path == "/v3/kv/range") {
      exchange->Answer(Range(exchange->body.find("keys_only") != std::string::npos));
    } else {
      ServeLease(*exchange);
    }
  }

  void RefuseWatch(Exchange& exchange) {
    ++watches_refused;
    exchange.Answer(
        fmt::format(R"({{"result":{{{},"created":true,"canceled":true,"cancel_reason":"{}"}}}})",
                    Header(), refusal));
  }

  std::string Token() const { return fmt::format("token-{}", logins); }

  void LogIn(Exchange& exchange) {
    if (password.empty()) {
      return exchange.Answer(R"({"code":9,"message":"etcdserver: authentication is not enabled"})",
                             400);
    }
    if (exchange.body != R"({"name":"me","password":")" + password + R"("})") {
      return exchange.Answer(
          R"({"code":3,"message":"etcdserver: authentication failed, invalid user ID or password"})",
          400);
    }
    ++logins;
    exchange.Answer(fmt::format(R"({{{},"token":"{}"}})", Header(), Token()));
  }

  std::string Range(bool newest_only) const {
    std::string kvs;
    const auto newest = std::max_element(
        keys.begin(), keys.end(),
        [](const auto& a, const auto& b) { return a.second.second < b.second.second; });
    for (auto each = keys.begin(); each != keys.end(); ++each) {
      if (newest_only && each != newest) continue;
      kvs += fmt::format(R"({}{{"key":"{}","value":"{}","mod_revision":"{}"}})",
                         kvs.empty() ? "" : ",", absl::Base64Escape(each->first),
                         absl::Base64Escape(each->second.first), each->second.second);
    }
    return fmt::format(R"({{{},"kvs":[{}],"count":"{}"}})", Header(), kvs, keys.size());
  }

  // Registrars put one key, at once or if it is absent.
  std::string Commit(const std::string& body) {
    if (body.find(R"("compare":[])") != std::string::npos || keys.empty()) {
      if (body.find("request_put") != std::string::npos) keys["put"] = {body, ++revision};
      holder = leases;
      return fmt::format(R"({{{},"succeeded":true}})", Header());
    }
    return fmt::format(R"({{{},"responses":[{{"response_range":{{"kvs":[{{"key":"{}",)"
                       R"("mod_revision":"{}","lease":"{}"}}]}}}}]}})",
                       Header(), absl::Base64Escape(keys.begin()->first),
                       keys.begin()->second.second, holder);
  }

  void ServeLease(Exchange& exchange) {
    if (exchange.path == "/v3/lease/grant") {
      lease_alive = true;
      return exchange.Answer(fmt::format(R"({{{},"ID":"{}","TTL":"10"}})", Header(), ++leases));
    }
    if (exchange.path == "/v3/lease/keepalive") {
      return exchange.Answer(fmt::format(R"({{"result":{{{},"ID":"{}"{}}}}})", Header(), leases,
                                         lease_alive ? R"(,"TTL":"10")" : ""));
    }
    if (!lease_alive) {
      return exchange.Answer(R"({"code":5,"message":"etcdserver: requested lease not found"})",
                             404);
    }
    if (exchange.path == "/v3/lease/revoke") {
      lease_alive = false;
      keys.clear();
    } else if (exchange.path == "/v3/kv/txn") {
      return exchange.Answer(Commit(exchange.body));
    }
    exchange.Answer(fmt::format("{{{}}}", Header()));
  }
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_NAMING_ETCD_FAKE_ETCD_H_
