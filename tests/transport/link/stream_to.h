// StreamTo: a bootstrap stream whose peer seems to connect from another source address.

#ifndef VERBENA_TESTS_TRANSPORT_LINK_STREAM_TO_H_
#define VERBENA_TESTS_TRANSPORT_LINK_STREAM_TO_H_

#include <memory>
#include <string>
#include <utility>

#include "tests/transport/connect/passing_stream.h"
#include "verbena/transport/connect/bootstrap.h"

namespace verbena {

class StreamTo final : public PassingStream {
 public:
  StreamTo(std::unique_ptr<MessageStream> stream, std::string source)
      : PassingStream(std::move(stream)), source_(std::move(source)) {}

  const std::string& source() const override { return source_; }

 private:
  const std::string source_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_LINK_STREAM_TO_H_
