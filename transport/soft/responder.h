// The target's side of the soft device: Responder, which executes requests, and Places, which finds
// the memory that payloads over TCP belong in.
//
// A QP has a Responder, and a LanePair its Places, each under its CQ's lock.

#ifndef VERBENA_TRANSPORT_SOFT_RESPONDER_H_
#define VERBENA_TRANSPORT_SOFT_RESPONDER_H_

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/receive_queue.h"
#include "verbena/transport/soft/ring.h"

namespace verbena::internal::soft {

class Completions;
class CompletionWriter;
class InLane;
class QueuePair;

// The QP that `request`, which comes over `lane`, is for, if it would be executed.
QueuePair* FindExecutor(InLane& lane, const MessageHeader& request, Completions& cq);

// Serves the requests that wait in `lane`, until none is left, `writer` is full, the initiator has
// to read answers first, or it is the turn of others. True when the initiator waits to hear about
// one of them.
bool ServeRequests(InLane& lane, Completions& cq, CompletionWriter& writer);

// Responder: the target's half of a QP, which executes what its peer requests.
//
// A request is checked in full before it is executed: the QP it names, who sends it, its sequence
// number, the QP's access flags and the rkey (again for each fragment, since a registration may be
// revoked between two). A request that is not executed is refused, and the initiator told why.
//
// Everything runs under the receive CQ's lock.
class Responder {
 public:
  Responder(QueuePair& qp, const ibv_qp_cap& cap, bool shared);

  int Post(ibv_recv_wr* wr, ibv_recv_wr** bad_wr);

  // How far the fragments of WRITEs have come.
  struct WriteCursor {
    bool writing = false;  // in the middle of a WRITE
    uint16_t psn = 0;      // of the next fragment
    TargetRange range;
    uint64_t written = 0;
    uint32_t connection = 0;  // of the QP: connection()
  };
  // Counts how often the QP was reset: what was known of it before does not hold any more.
  uint32_t connection() const { return connection_; }
  // As it is after the fragments that were executed. False when another operation is under way.
  bool CursorOfWrites(WriteCursor& cursor) const;
  // Checks `request`, a fragment that arrives, as executing it would do if `cursor` was reached,
  // but changes nothing. Of its payload no more than the range needs to be there. False: it is not
  // to be placed. Otherwise `address` is the place of its first byte behind the range, and `cursor`
  // moves behind the fragment.
  bool FindPlace(const MessageHeader& request, const std::byte* payload, WriteCursor& cursor,
                 uint64_t& address) const;

  // Executes or refuses one fragment that is addressed to this QP.
  void Execute(InLane& lane, const MessageHeader& request, const std::byte* payload,
               CompletionWriter& writer);

  void SetFirstPsn(uint32_t psn) { expected_psn_ = static_cast<uint16_t>(psn); }
  // Ends every receive that is posted to this QP, or taken by it, with IBV_WC_WR_FLUSH_ERR.
  void Flush(CompletionWriter& writer);
  void Reset();

 private:
  // Whether a fragment was executed, and if not, why it is refused.
  struct Execution {
    bool executed = true;
    NakReason reason = NakReason::kNoReceive;
  };
  static constexpr Execution Done() { return {}; }
  static constexpr Execution Refuse(NakReason reason) { return {false, reason}; }

  Execution Send(const MessageHeader& request, const std::byte* payload, CompletionWriter& writer);
  Execution SendInvalidate(const MessageHeader& request, const std::byte* payload,
                           CompletionWriter& writer);
  Execution Write(InLane& lane, const MessageHeader& request, const std::byte* payload,
                  CompletionWriter& writer);
  // Every fragment of a WRITE with immediate says so: its first one has taken a receive, which the
  // last one reports.
  bool IsOfThisWrite(const MessageHeader& request) const {
    return receive_taken_ == ((request.flags & kImmediate) != 0);
  }
  // Copies those of the next `bytes` of the WRITE that are not in place yet. False if they were to
  // be placed, and the place was withdrawn halfway, or if they cannot be written.
  bool StoreRest(InLane& lane, const std::byte* data, uint32_t bytes);
  Execution Read(InLane& lane, const MessageHeader& request, const std::byte* payload);
  Execution Atomic(InLane& lane, const MessageHeader& request, const std::byte* payload);
  // The first message of the peer was executed.
  [[gnu::cold, gnu::noinline]] void HearFirst();
  Execution FailReceive(ibv_wc_status status, NakReason reason, CompletionWriter& writer);

  bool TakeReceive();
  // Copies into the receive that was taken, at `received_`.
  ibv_wc_status Scatter(const std::byte* from, uint32_t bytes);
  ibv_wc& CompleteReceive(const MessageHeader& request, ibv_wc_opcode opcode, uint32_t bytes,
                          CompletionWriter& writer);
  bool RemoteAllowed(uint32_t rkey, uint64_t address, uint64_t bytes, unsigned access) const;

  QueuePair& qp_;
  ReceiveQueue queue_;  // unused when the QP has an SRQ
  uint16_t expected_psn_ = 0;
  bool heard_ = false;  // of its peer, since it was reset
  uint32_t connection_ = 0;

  // The operation whose fragments are arriving.
  Opcode current_ = Opcode::kNone;
  bool receive_taken_ = false;
  Receive receive_;
  uint32_t received_ = 0;
  TargetRange write_;
  uint64_t written_ = 0;
};

// Memory for the next bytes of one message.
struct Place {
  static constexpr size_t kMaxParts = 4;

  std::array<iovec, kMaxParts> parts{};
  size_t count = 0;
  uint32_t bytes = 0;  // of all parts. 0: no place; the bytes go into the ring
  bool later = false;  // no place before earlier messages of the ring are consumed
};

// Places: the memory where payloads that arrive over a TCP connection belong, so that the LanePair
// receives them there, and not in a ring.
//
// A message has a place once it is certain that it will be executed as soon as it is complete. Its
// first line has arrived, every earlier message of its ring is consumed or is a fragment of the
// same WRITE or READ, and the checks that its execution makes hold by now. A place is good for
// bytes that are received before the CQ's lock is released. Whoever withdraws the memory or the
// queue pair waits for the lock, so nothing is written there afterwards. For the next bytes the
// place is looked up again.
//
// Owned by a LanePair, under the CQ's lock. It remembers four cursors, however many operations are
// under way: those of the newest WRITE and READ that had a place.
class Places {
 public:
  // Less than this is not worth a look: it goes through the ring. (start)
  static constexpr uint32_t kLeastBytes = 2048;

  // Returns the place of the first bytes that `message`, message `number` of its ring, still lacks:
  // of `most` bytes or fewer.
  Place OfRequest(InLane& lane, Completions& cq, const RingIntake::Incomplete& message,
                  uint64_t number, uint32_t most);
  Place OfAnswer(OutLane& lane, const RingIntake::Incomplete& message, uint64_t number,
                 uint32_t most);

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};

  // How far the WRITE or READ will be before message `number`, if all before it are executed.
  struct WriteAhead {
    uint64_t number = kNone;
    uint32_t qpn = 0;
    Responder::WriteCursor cursor;
  };
  struct ReadAhead {
    uint64_t number = kNone;
    uint32_t qpn = 0;
    uint16_t psn = 0;
    uint32_t offset = 0;
  };

  // The cursors at the message that has a place, and at the one behind it.
  WriteAhead write_;
  WriteAhead next_write_;
  ReadAhead read_;
  ReadAhead next_read_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_RESPONDER_H_
