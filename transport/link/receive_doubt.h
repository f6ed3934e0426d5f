// ReceiveDoubt: whether receives of a shared receive queue are gone with queue pairs, and which.
//
// A device may drop the completions of a queue pair that is destroyed before they were polled, and
// with them the receives (mlx5 does). Such receives look posted for ever, and peers hold credits
// for them. A doubt finds them, because an SRQ hands out receives in the order in which they were
// posted:
//
//   1. Raise(n): up to n may be gone. The receives that are posted now are the older ones.
//   2. A receive completes that was posted later: all older ones are taken. Those that have not
//      completed are missing. Each live queue pair may still be writing into one of them.
//   3. Reclaim() if the owner has proof that no queue pair is still writing. WriteOff() if it will
//      never have that proof.
//
// A doubt also ends by itself when all older receives have completed. What was raised meanwhile
// then becomes the next doubt. Part of a ReceiveRing; one thread.

#ifndef VERBENA_TRANSPORT_LINK_RECEIVE_DOUBT_H_
#define VERBENA_TRANSPORT_LINK_RECEIVE_DOUBT_H_

#include <cstdint>
#include <vector>

namespace verbena::internal {

// Receives of a ring: which, and how many.
struct ReceiveSet {
  std::vector<bool> has;  // by index
  uint32_t count = 0;
};

class ReceiveDoubt {
 public:
  // `posted`: what the device may hold, missing receives included. It outlives this object.
  explicit ReceiveDoubt(const ReceiveSet& posted) : posted_(posted) {}

  // A queue pair is destroyed that may have taken up to `count` receives which never complete.
  void Raise(uint32_t count);
  // The receive `index` has completed, and is no longer in `posted`. Precondition: open().
  void OnCompletion(uint32_t index);
  // No queue pair can have a missing receive any more: the owner has taken them out of `posted`.
  // Precondition: older_are_taken().
  void Reclaim();
  // The same for receives that a queue pair may have for ever.
  void WriteOff();

  bool open() const { return stage_ != Stage::kNone; }
  // Counts the doubts, from 1.
  uint32_t number() const { return number_; }
  // Everything older than this doubt is taken; missing() of them have not completed.
  bool older_are_taken() const { return stage_ == Stage::kMissing; }
  uint32_t missing() const { return older_are_taken() ? older_.count : 0; }
  bool IsMissing(uint32_t index) const { return older_are_taken() && older_.has[index]; }
  // The last completion, while open(), was of a receive that was posted after the doubt arose. A
  // queue pair receives in order: the one that took it has completed all older ones that it had
  // taken.
  bool last_was_newer() const { return last_was_newer_; }

  // Receives that may be gone, and are not known to be missing.
  uint32_t suspected() const { return suspected_ + suspected_later_; }
  // Receives that were written off, by all doubts.
  uint32_t written_off() const { return written_off_; }
  // Whether many queue pairs have ended in doubt since a receive completed.
  bool is_silent() const { return ends_in_silence_ >= kEndsInSilence; }

 private:
  enum class Stage : uint8_t { kNone, kWaiting, kMissing };

  static constexpr uint32_t kEndsInSilence = 32;  // (start)

  void End();

  const ReceiveSet& posted_;
  Stage stage_ = Stage::kNone;
  bool last_was_newer_ = false;
  uint32_t number_ = 0;
  ReceiveSet older_;              // posted before the doubt, and not completed
  uint32_t suspected_ = 0;        // what Raise() was told, until the older ones are taken
  uint32_t suspected_later_ = 0;  // what it was told since: for the next doubt
  uint32_t ends_in_silence_ = 0;
  uint32_t written_off_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_RECEIVE_DOUBT_H_
