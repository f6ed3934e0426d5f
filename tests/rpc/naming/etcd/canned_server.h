// CannedServer: a server on a port of its own that reads one HTTP request from each connection, and
// lets the test write the bytes of the answer.

#ifndef VERBENA_TESTS_RPC_NAMING_ETCD_CANNED_SERVER_H_
#define VERBENA_TESTS_RPC_NAMING_ETCD_CANNED_SERVER_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"

namespace verbena::internal {

// A certificate for 127.0.0.1 that signs itself, made anew for each test. A second one takes the
// place of the first one's files.
class TestCertificate {
 public:
  TestCertificate() : key_(EVP_RSA_gen(2048)), x509_(X509_new()) {
    X509_set_version(x509_, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x509_), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509_), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509_), 3600);
    X509_set_pubkey(x509_, key_);
    X509_NAME* name = X509_get_subject_name(x509_);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("etcd"), -1, -1, 0);
    X509_set_issuer_name(x509_, name);
    X509_EXTENSION* hosts =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(x509_, hosts, -1);
    X509_EXTENSION_free(hosts);
    X509_sign(x509_, key_, EVP_sha256());
    FILE* file = std::fopen(path_.c_str(), "w");
    PEM_write_X509(file, x509_);
    std::fclose(file);
    file = std::fopen(key_path_.c_str(), "w");
    PEM_write_PrivateKey(file, key_, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
  }
  ~TestCertificate() {
    X509_free(x509_);
    EVP_PKEY_free(key_);
    std::remove(path_.c_str());
    std::remove(key_path_.c_str());
  }
  const std::string& path() const { return path_; }
  const std::string& key_path() const { return key_path_; }
  EVP_PKEY* key() const { return key_; }
  X509* x509() const { return x509_; }

 private:
  const std::string path_ = ::testing::TempDir() + "/etcd_ca." + std::to_string(getpid());
  const std::string key_path_ = path_ + ".key";
  EVP_PKEY* const key_;
  X509* const x509_;
};

class CannedServer {
 public:
  // A connection whose request was read. Write() sends; the connection closes behind the handler.
  class Connection {
   public:
    Connection(int fd, SSL* tls, const std::atomic<bool>& stopping)
        : fd_(fd), tls_(tls), stopping_(stopping) {}
    void Write(std::string_view bytes) {
      while (!bytes.empty()) {
        const auto sent = tls_ == nullptr
                              ? send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL)
                              : SSL_write(tls_, bytes.data(), static_cast<int>(bytes.size()));
        if (sent <= 0) return;
        bytes.remove_prefix(static_cast<size_t>(sent));
      }
    }
    void Answer(std::string_view body, int status = 200) {
      Write(
          fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body));
    }
    void BeginChunks() { Write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"); }
    void Chunk(std::string_view bytes) {
      Write(fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes));
    }
    // Until the client closes, or the server ends.
    void AwaitClose() {
      pollfd waits{.fd = fd_, .events = POLLRDHUP, .revents = 0};
      while (!stopping_ && poll(&waits, 1, 20) == 0) {
      }
    }

   private:
    const int fd_;
    SSL* const tls_;
    const std::atomic<bool>& stopping_;
  };
  using Handler = std::function<void(Connection&, const std::string& request)>;

  // `certificate`, which outlives it, for TLS.
  explicit CannedServer(Handler handler, const TestCertificate* certificate = nullptr)
      : handler_(std::move(handler)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (certificate != nullptr) Use(*certificate);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes);
    address_ = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
    thread_ = std::thread([this] { Run(); });
  }
  ~CannedServer() {
    stopping_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    SSL_CTX_free(tls_);
  }
  // From now on the server has this certificate, and demands it of its clients, too.
  void Use(const TestCertificate& certificate) {
    SSL_CTX* tls = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(tls, certificate.x509());
    SSL_CTX_use_PrivateKey(tls, certificate.key());
    X509_STORE_add_cert(SSL_CTX_get_cert_store(tls), certificate.x509());
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    std::lock_guard lock(mutex_);
    SSL_CTX_free(std::exchange(tls_, tls));
  }
  const std::string& address() const { return address_; }
  int requests() const { return requests_; }
  void AwaitRequest() const { requests_.wait(0); }

 private:
  void Run() {
    for (;;) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      SSL* tls = nullptr;
      {
        std::lock_guard lock(mutex_);
        if (tls_ != nullptr) tls = SSL_new(tls_);
      }
      if (tls != nullptr) SSL_set_fd(tls, fd);
      if (tls == nullptr || SSL_accept(tls) == 1) Serve(fd, tls);
      SSL_free(tls);
      close(fd);
    }
  }

  void Serve(int fd, SSL* tls) {
    std::string request;
    char chunk[4096];
    while (!IsComplete(request)) {
      const auto got =
          tls == nullptr ? read(fd, chunk, sizeof chunk) : SSL_read(tls, chunk, sizeof chunk);
      if (got <= 0) return;
      request.append(chunk, static_cast<size_t>(got));
    }
    ++requests_;
    requests_.notify_all();
    Connection connection(fd, tls, stopping_);
    handler_(connection, request);
  }

  static bool IsComplete(const std::string& request) {
    const size_t end = request.find("\r\n\r\n");
    const size_t length = request.find("Content-Length: ");
    if (end == std::string::npos || length == std::string::npos) return false;
    return request.size() >= end + 4 + std::strtoul(request.c_str() + length + 16, nullptr, 10);
  }

  const Handler handler_;
  const int listener_;
  std::mutex mutex_;
  SSL_CTX* tls_ = nullptr;  // under mutex_
  std::string address_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> requests_ = 0;
  std::thread thread_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_NAMING_ETCD_CANNED_SERVER_H_
