// Names of links and of work requests: LinkKey and WrId.
//
// Each is a slot and the slot's generation, so whatever comes late for a former owner of the slot
// is recognised. Values; any thread.

#ifndef VERBENA_TRANSPORT_LINK_IDS_H_
#define VERBENA_TRANSPORT_LINK_IDS_H_

#include <cstdint>

namespace verbena::internal {

// LinkKey: names a link for longer than the link lives.
//
// A slot of its endpoint, and the slot's generation, which the next link there does not share.
struct LinkKey {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

// WrId: the id of a work request, by which its completion finds its owner, however late it comes.
//
// A WrId holds no pointer, but a slot and the slot's generation. A slot is reused, and its next
// owner has another generation. An endpoint compares the generation before it touches anything, so
// a completion of a link that is gone is counted and dropped.
struct WrId {
  // kReceive: of a shared receive queue; kLinkReceive: of a link's own.
  enum class Kind : uint8_t { kReceive = 1, kSend = 2, kLinkReceive = 3 };

  Kind kind;            // 4 bits
  uint16_t position;    // 12 bits. kSend: the send queue position, modulo 4096
  uint32_t generation;  // 24 bits. kSend, kLinkReceive: of the link's slot
  uint32_t slot;        // 24 bits. kReceive, kLinkReceive: the buffer; kSend: the link

  static constexpr uint32_t kPositionMask = 0xfff;
  static constexpr uint32_t kGenerationMask = 0xffffff;
  static constexpr uint32_t kSlotMask = 0xffffff;

  constexpr uint64_t Pack() const {
    return uint64_t{static_cast<uint8_t>(kind)} << 60 | uint64_t{position & kPositionMask} << 48 |
           uint64_t{generation & kGenerationMask} << 24 | (slot & kSlotMask);
  }

  static constexpr WrId Unpack(uint64_t packed) {
    return {static_cast<Kind>(packed >> 60), static_cast<uint16_t>(packed >> 48 & kPositionMask),
            static_cast<uint32_t>(packed >> 24 & kGenerationMask),
            static_cast<uint32_t>(packed & kSlotMask)};
  }
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_IDS_H_
