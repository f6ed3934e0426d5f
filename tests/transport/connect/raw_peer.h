// RawPeer: a blocking TCP socket that speaks no protocol, for tests that send what no correct peer
// sends. Failures throw; so does a Read() that gets nothing for a minute.

#ifndef VERBENA_TESTS_TRANSPORT_CONNECT_RAW_PEER_H_
#define VERBENA_TESTS_TRANSPORT_CONNECT_RAW_PEER_H_

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace verbena {

class RawPeer {
 public:
  // Connects to "127.0.0.1:port". `receive_bytes` bounds how many unread bytes the kernel keeps; 0
  // leaves the bound to the kernel.
  explicit RawPeer(const std::string& address, int receive_bytes = 0);
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;
  ~RawPeer() { Close(); }

  // The message behind its length, as streams carry it. Length() alone announces bytes that a test
  // may leave out.
  static std::string Framed(const std::string& message);
  static std::string Length(uint32_t bytes);

  void Write(const std::string& bytes);

  // Reads until `limit` bytes have come or the stream ends; a reset ends it too.
  std::string Read(size_t limit);

  // Ends the stream in this direction; the other direction stays open.
  void FinishWriting() { shutdown(fd_, SHUT_WR); }

  void Close();

  // Resets the connection, as the kernel does for a process that crashed with unread data.
  void Reset();

 private:
  int fd_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_CONNECT_RAW_PEER_H_
