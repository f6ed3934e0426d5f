// Payload: bulk bytes beside a message: Buffers, or parts of them, sent in order and never
// serialized.
//
// Owns its Buffers: nobody else may change memory that a peer may still read or a device still
// send. Move-only; one whole Buffer, the usual payload, costs no allocation. One thread.
//
//   Payload block = std::move(buffer);                    // all of it
//   Payload ends; ends.Add(std::move(buffer), {{0, 4096}, {61440, 4096}});

#ifndef VERBENA_RPC_PAYLOAD_H_
#define VERBENA_RPC_PAYLOAD_H_

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

// A part of a Buffer, within its size.
struct PayloadSlice {
  size_t offset;
  size_t bytes;
};

class Payload {
 public:
  Payload() = default;
  Payload(Buffer buffer) : first_(std::move(buffer)) {}  // NOLINT(google-explicit-constructor)

  // Appends all of the Buffer, or its slices in this order.
  void Add(Buffer buffer) {
    if (size() == 0 && parts_ == nullptr) {
      first_ = std::move(buffer);
      return;
    }
    const PayloadSlice all{0, buffer.size()};
    Add(std::move(buffer), {all});
  }
  void Add(Buffer buffer, std::initializer_list<PayloadSlice> slices) {
    Add(std::move(buffer), absl::MakeConstSpan(slices.begin(), slices.size()));
  }
  void Add(Buffer buffer, absl::Span<const PayloadSlice> slices) {
    if (parts_ == nullptr) {
      parts_ = std::make_unique<Parts>();
      const PayloadSlice all{0, first_.size()};
      if (first_) parts_->Add(std::move(first_), absl::MakeConstSpan(&all, 1));
    }
    parts_->Add(std::move(buffer), slices);
  }

  // The bytes of all parts.
  size_t size() const { return parts_ == nullptr ? first_.size() : parts_->bytes; }
  bool empty() const { return size() == 0; }
  // A payload of no bytes, which is not the same as none.
  static Payload Empty() {
    Payload payload;
    payload.parts_ = std::make_unique<Parts>();
    return payload;
  }
  // Whether there is one, even an empty one: Empty(), or a Buffer of any size.
  bool present() const { return first_ || parts_ != nullptr; }

  // Its parts in order, each of one Buffer; some may be empty.
  size_t part_count() const { return parts_ == nullptr ? 1 : parts_->views.size(); }
  BufferView part(size_t index) const {
    VERBENA_CHECK(index < part_count()) << "part " << index << " of " << part_count();
    return parts_ == nullptr ? first_.view() : parts_->views[index];
  }

  // Takes the first Buffer, and destroys any others. For payloads of one Buffer. The payload is
  // absent afterwards.
  Buffer TakeBuffer() {
    Buffer buffer = std::move(first_);
    if (parts_ != nullptr && !parts_->buffers.empty()) buffer = std::move(parts_->buffers.front());
    parts_.reset();
    return buffer;
  }

 private:
  struct Parts {
    void Add(Buffer buffer, absl::Span<const PayloadSlice> slices) {
      for (const PayloadSlice& slice : slices) {
        VERBENA_CHECK(slice.offset <= buffer.size() && slice.bytes <= buffer.size() - slice.offset)
            << slice.bytes << " bytes at " << slice.offset << " of a Buffer of " << buffer.size();
        views.push_back(buffer.Slice(slice.offset, slice.bytes));
        bytes += slice.bytes;
      }
      buffers.push_back(std::move(buffer));
    }

    std::vector<Buffer> buffers;
    std::vector<BufferView> views;
    size_t bytes = 0;
  };

  Buffer first_;  // the only Buffer while parts_ is null
  std::unique_ptr<Parts> parts_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_PAYLOAD_H_
