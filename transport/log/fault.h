// PlantedFault: the faults that VERBENA_MUTANT() can plant, in the order of their numbers.
//
// Each has one place in one source file, and a line in tools/dev/mutant_table.py that names the
// test which must then fail. Only --config=mutants compiles this file, so that a new fault rebuilds
// nothing else.

#ifndef VERBENA_TRANSPORT_LOG_FAULT_H_
#define VERBENA_TRANSPORT_LOG_FAULT_H_

namespace verbena::internal::mutant {

enum class PlantedFault {
  // coro, executor
  kNoRepollAfterArm,        // an executor sleeps without polling its CQ again after arming it
  kBlockingCallNotAwaited,  // a waiting coroutine is destroyed under its blocking callable
  kOneExecutorPolled,       // of several that a host owns, BlockOn polls the first alone
  kRunStaysArmed,           // Run() goes on as if its host slept
  kRefusedCqStaysPolled,    // a queue that the device does not destroy is polled for ever
  kShutdownRethrows,        // what a task threw comes out of its owner's shutdown
  kTimersNotInFd,           // a host's sleep is not ended by a timer
  kAllStepsInOneTurn,       // a thousand lost links are torn down before the next poll
  kGrantDiesWithItsWaiter,  // a permit goes to a waiter that is destroyed before it runs
  kGeneratorKeepsScope,     // a generator runs in the scope of whoever asked it first
  kForEachGoesOn,           // the first failure of an item stops none of the others
  kJoinKeepsCancellation,   // cancelling a coroutine that joins a task does not reach the task
  kJoinedBeforeFrame,       // a task is joined before its frame is destroyed
  kUntakenExceptionLost,    // nobody hears of an exception whose handle is dropped
  kDetachedResultKept,      // a result that nobody takes lives as long as messages about its task
  kSinkThrows,              // a log sink that throws ends whoever logs
  // memory, soft device
  kRkeyRangeUnchecked,     // a peer may write and read past the region that its rkey names
  kLkeyPdUnchecked,        // a QP may use memory registered in another protection domain
  kUnsignalledFreesSlot,   // an unsignalled WR gives its send queue slot back at once
  kFlushNotDelivered,      // a QP in the error state keeps its outstanding WRs to itself
  kStoppedWakerStalls,     // who rings second leaves waking the engine to who rang first
  kRoomOutOfTurn,          // a new message passes queue pairs that wait for room in the ring
  kTakingCountedFirst,     // the engine counts a taking before it clears the doorbell
  kGrowthOnExecutor,       // a payload pool registers its next arena on its executor
  kRefusedGrowthRepeated,  // a device is asked at once again for memory that it refused
  kBlockTailLost,          // a buffer gives back the first of the blocks that it is made of
  kQuiescedByNumber,       // a queue pair's end is told apart by its number alone
  kDirectCopyUnbounded,    // a post copies all that was posted before its thread polls again
  kWithheldSrqCreated,     // a profile withholds shared receive queues, and one is made
  kWithheldAtomicsPosted,  // a profile withholds atomic operations, and one is posted
  kLastProgressLost,       // a SEND that its target received before it ended is said to have failed

  // the TCP wire of the soft device
  kUnconsumedLinesOverwritten,  // a peer's lines overwrite messages that nobody has consumed
  kHalfMessageShown,            // a message is executed before its last byte has arrived
  kTcpProgressUnchecked,        // a peer may say that it consumed what was never sent
  kSilentSocketsUnbounded,      // sockets that say nothing take descriptors without end
  kTcpSecretUnchecked,          // a stranger may open lanes under the name of a peer
  kPeersNameTaken,              // a stranger that takes a peer's name replaces its session
  kLostPairLeavesQps,           // queue pairs wait for ever when their connection is cut
  kUnaskedAnswersTaken,         // answers arrive over lanes that have sent no request
  kProgressBeforeRefusal,       // a target says that it consumed a request before it refuses it
  kBlockedSocketForgotten,      // what a full socket did not take is never sent
  kFailedDialEndsSession,       // a peer that cannot be dialed gets no time to dial itself
  kSourceTakesAll,              // one host takes all peers, connections or memory of a device
  kReturnedSharesCount,         // what a host gives back stays counted while another holds some
  kLaneBytesUncounted,          // rings take memory without end
  kOldestMakesWay,              // a host that opens many sockets pushes out those of others
  kGreetedSocketsCount,         // a socket that has greeted still counts among the silent ones
  kForeignGidTaken,             // a device is taken for the one whose address it claims
  kUnansweredResolveWaits,      // a queue pair waits for ever for a peer that answers nothing
  kSquatterStays,               // who takes a name first keeps it from the device that has it
  kClosedLanesLogged,           // a peer fills the log by connections that it breaks
  kUnsentLoanForgotten,         // bytes of a large payload that a full socket did not take are lost
  kPlacedOutOfOrder,            // a large WRITE's bytes land before earlier requests are executed
  kPlaceKeyUnchecked,           // a WRITE's bytes land after its key was withdrawn
  kLateImmediateTaken,          // a WRITE's last fragment reports a receive that it has not taken
  kTurnsUnbounded,              // one poll serves all that a peer has let wait, before anybody else
  kColdLanesLast,               // peers beyond the busiest wait until these have nothing left
  kUnwantedDialsGoOn,           // who claims many addresses has a device dial all of them at once
  kPlacedBytesCopied,           // old bytes of a ring are copied over a payload that is in place
  kPlaceOutlivesReset,          // a WRITE to a queue pair's former life leaves bytes in its memory
  kReadOutlivesQp,              // a READ goes on from the memory of a queue pair that is destroyed
  kRestOfWrUnchecked,           // what a ring had no room for is sent from memory that is withdrawn

  // connect, control verbs
  kServerSendsBeforeReady,    // a server sends to a queue pair whose owner has not said Ready
  kControlOrderLost,          // a control job overtakes another of its queue pair
  kConnectsOnExecutor,        // a queue pair is connected on its executor
  kWindowsFreedOnExecutor,    // a lost link's windows are deallocated on its executor
  kAddressChangeIgnored,      // what a port's event says has changed is not read again
  kConnectorStays,            // rdma_cm goes on with the address that the port had at the start
  kNumberTakenByNameRefused,  // a local server that wants any number hears that one is in use
  kBoundIdDestroyedAnywhere,  // an id of rdma_cm ends while another thread handles its event
  kMissingAddressIsForGood,   // a port without its address refuses links as if it never had one
  kQueueErrorIgnored,         // a lost completion or receive queue stays in use
  kErrorBehindTeardowns,      // a lost link's queue pair goes to ERR behind others' destructions
  kOneSourceTakesResolvers,   // one source runs verbs on all threads that resolve addresses
  kGivenUpJobStaysQueued,     // a job that was given up waits for a thread to be dropped
  kGivenUpConnectRuns,        // a handshake's control verbs run though its time is over
  kSpoolOfOthersAccepted,     // a file bootstrap uses a directory that others may write to
  kNewestHandshakeEvicted,    // a flood closes the handshake that came last, not the oldest
  kPendingEvictedForSilent,   // a handshake that goes on is closed while others say nothing
  kOneSourceTakesExecutor,    // one source address may have all links of an executor
  kClaimedAddressServed,      // a client may claim another host's GID though the server refuses it
  kFilesHaveNoSource,         // each connection through a directory counts as another source's
  kLinksPiledOnOneExecutor,   // a server places every link on its executor 0
  kConnectExceptionEscapes,   // an exception leaves a connection attempt, which never ends
  kLinkOfNoChannelStays,      // a link stays open when its last channel is gone
  kIdleLinkStays,             // a link that nobody uses stays open for ever
  kClientOpensAfterReady,     // a client says Ready before its link is open
  kReserveOutlivesListener,   // a closed listener's spare descriptor closes some time later
  kTcpPortZeroTaken,          // a peer may announce a TCP wire without a port
  kTcpClaimUnchecked,         // a client over TCP may claim another host's address unseen
  kAnnouncedLoopbackTaken,    // a server makes its client connect to the client's own host
  kTcpOpenedUnasked,          // "auto" listens on a TCP port that nobody has asked for
  kLoopbackOpensTcp,          // a connection over loopback makes "auto" open a TCP port
  kTcpBeforeRdma,             // hosts that have RDMA go over TCP

  // links
  kOwnReceivesUncounted,      // a completion queue has no room for links' own receives
  kWindowIsWholeQueue,        // a peer has credits for receives that are not posted again yet
  kLinkReceivesUsedOnce,      // receives of a link's own queue are not posted again
  kReceiveOfEarlierLink,      // a late receive of an earlier link is taken for the next one's
  kCreditLeakedOnError,       // what a lost link had borrowed never comes back
  kStaleWrIdAccepted,         // a late completion is taken for the slot's next owner's
  kConvoy,                    // all frames wait for the turn's end
  kEarlySendOvertakes,        // frames are posted ahead of WRs that have earlier positions
  kPaddingNotCleared,         // a frame's padding is what the send buffer held before
  kConnectingOwesProof,       // a link closes as silent before its queue pair can send
  kFailedHandshakeFree,       // a failed handshake's stream ends before its link's slot is free
  kSwallowedReceivesLeak,     // receives that a device drops with a queue pair never come back
  kBufferUnsignalled,         // only a flush's last SEND is looked at when it is signalled or not
  kReserveUnchecked,          // a peer may send on its reserve as often as it likes
  kRecallsAddUp,              // two recalls on their way take twice what the peer borrowed
  kOneCreditAnswersARecall,   // a peer that gives one credit back may keep the others
  kBuffersWithoutReady,       // a client that has not said Ready fills send buffers
  kRecallUnanswered,          // a peer may ignore recalls for ever
  kSendQueueTooDeep,          // a send queue may be deeper than positions tell apart
  kUnreceivedSendsKept,       // a peer that posts no receives holds send buffers for ever
  kGateStaysOpen,             // what outlives an endpoint still posts to its executor
  kRoomWakesNobody,           // a link that waits for send buffers is forgotten
  kUnacknowledgedSendsKept,   // a peer that takes a SEND now and then may hold many for minutes
  kPingsKeepIdleLinks,        // a PING counts as use of a link, and puts off its end
  kOneLinkTakesSends,         // a link may hold as many send buffers as its send queue takes
  kOneSourceTakesCredits,     // the links to one address may borrow all credits of the pool
  kOneSourceTakesSends,       // the links to one address may hold all send buffers
  kSourcesHaveHalf,           // each of two addresses may hold half of the send buffers
  kLoneSourceNotTold,         // a full source waits on though all others are gone
  kCompactDeadlineUnchecked,  // a compact SEND ends before the deadline that it tells of
  kCompactForgetsReturn,      // a compact SEND leaves with counters that the peer was not told
  kHandlersRefusalExecuted,   // the caller of a handler that refuses hears that it ran
  kEndedCallGivesLanding,     // a landing is made for a call that ended as soon as it was asked for
  kForeignRefusalTaken,       // an error of a call that a handler made refuses the handler's own
  kMethodNumberUnchecked,     // a request names a method beyond the table
  kChecksWithoutLinks,        // an endpoint without links keeps its timer
  kOwnLinksWakeAlone,         // a full source hears only of what its own links give back
  kNoSpareForControl,         // PONGs and credits wait for buffers that other links keep
  kDroppedSendsHeld,          // SENDs that a lost link drops count against its address for ever
  kUncreditedPongForgotten,   // a PONG that found no credit waits for another PING
  kRecallAnswerForgotten,     // a recall is answered when something else leaves
  kOwedCreditsForgotten,      // credits that no send buffer was free for are not returned later
  kDrainPosts,                // a drain answers what it finds, and goes on while a peer sends
  kFullQueueExcusesSilence,   // a silent peer is excused when its own SENDs fill the send queue
  kFullQueueKept,             // a peer may leave a send queue that is full of inline SENDs for ever
  kUnsentRecallCounts,        // a peer loses its link for a RECALL that never left
  kWatchExceptionEscapes,     // a stream that throws leaves its link open, and its watcher gone
  kWritersPassControl,        // frames that wait take each credit that a RECALL waits for
  // one-sided operations
  kCrawlingTransfersKept,  // a peer may keep READs of its memory from ending for ever
  kPredictablePsn,         // packet numbers come from a generator whose next one can be computed
  kTransferUnbounded,      // all of a transfer is posted at once, ahead of every later SEND
  kBulkTurnUnbounded,      // each link posts its own slice in every turn of the executor
  kSendBehindBulk,         // a slice of a transfer is posted ahead of the SENDs that wait already

  // runtime, client
  kEndpointMemoryOnExecutor,  // what a new endpoint registers is registered on its executor
  kUserMemoryOnExecutor,      // an application's memory is registered on the executor that asks
  kDeviceNeverReopened,       // a device that has failed stays out of service
  kUnclosableClosed,          // a device is closed though it refuses to give its domain back
  kUserMemoryNotHeld,         // a device is closed while the program has memory registered there
  kReopenOutlivesRuntime,     // executors end while their device is being opened for them
  kRefusedThreadForGood,      // nobody tries again to start the thread that opens a device
  kSpawnAfterShutdown,     // a task that is given to a runtime that ends begins, and is not awaited
  kShardsEndOneByOne,      // an executor's connections end while others' tasks use them
  kSpawnUnguarded,         // what a spawned task throws reaches the runtime's destructor
  kDeadlineNotCarried,     // a request leaves without the time that its caller has left
  kResponseBeforeRequest,  // a response ends a call whose request is still queued here
  kChangedRequestSent,     // a request that grew while it waited is serialized all the same
  kFailureCodeLost,        // a status whose body does not parse loses its code
  kDrainedBeforeSettled,   // a draining link closes before its last payload is safe
  // server
  kUnusedDeviceUncounted,     // an executor takes more links than a device it does not use allows
  kChangedReplySent,          // a reply that grew while it waited is serialized all the same
  kRequestChecksumUnchecked,  // the server takes a request's payload whatever its checksum
  kRefusalsOfLinksAlone,      // refusals that wait count for each link, and not for its source
  kCancelsDropped,            // the last of thousands of CANCELs that wait for room are not sent
  kUselessLinksReplaced,      // a link that is lost before it was of use is replaced at once
  kUseEndsNoRow,              // useless links are in a row though one of use was between them
  kStreamsAnswerNothing,      // what a server sends of a stream is no use of its link
  kRefusalsCloseTheLink,      // a few thousand refusals that wait for room end their link
  kSilentClientKept,          // the server never asks whether a client that owes it lives
  kUnsentResponseKept,        // a response that its client does not take waits for ever
  kRefusalAwaitsAFrame,       // the refusal of a call that waited goes out behind the next frame
  kUnsentRefusalsKept,        // refusals that their client does not take wait for ever
  kEmptyPagesKept,            // a link's table of call slots never gives memory back
  kMemoryWaitUnbounded,       // a request waits for payload memory until its deadline
  kOneClientTakesAll,         // one client may have as many calls as all together
  kResponsesTakeAllMemory,    // one client's responses may take all send memory
  kSharesOutliveHandlers,     // a request's shares are held until its response has left
  kGrantSharesLeaveEarly,     // a lost link's landings count no more while their memory is kept
  kClaimedPayloadsGranted,    // a payload that never arrived earns its client a landing
  kMemoryWaitsAddUp,          // a wait for memory begins anew after that for shares
  kIdsMultiplyShares,         // each runtime id that a source claims has a source's share
  kShortageFloodsLog,         // each link that a device gives too few windows costs a line
  kLandingOutwaitsItsCall,    // a call waits for its client's landing though it was cancelled
  kLookTakesTheLock,          // whoever looks whether a file is locked keeps others from locking it
  kEndedLeaseBlamesPeer,      // a peer loses its link for a lease that this side has yet to end
  kUnsentPayloadKept,         // a call that never began does not give its payload back
  kRefusedCallTellsNothing,   // a call that is refused at once leaves its CallInfo as it was
  kOneServerTakesLandings,    // a server has as much of a client's landing memory as it asks for
  kLandingKeptUnanswered,     // a server may keep a client's landing and never answer
  kGoAwayIsNoFailure,         // a link that was told to go before it answered counts as of use
  kDrainingLinksUnbounded,    // a server has as many links that drain as it likes
  kAcceptExceptionEscapes,    // a bootstrap that throws ends its server's accept loop
  kHandshakeExceptionEscapes,  // a stream that throws leaves its session with the server
  kShutdownWaitsForHandlers,   // a shutdown lasts until the last handler has ended
  kLinkFreedWithAHandlerLeft,  // a lost link counts as idle before all of its calls were asked
  // admission
  kOneClientFillsTheQueue,  // a client may have all places of the queue
  kOneSourceFillsTheQueue,  // the clients of one source may have all places of the queue
  kSourcesPlaceIsLost,      // a source that ran all that it may starts no call when one has ended
  kLargeClaimsPinned,       // a request counts with all that it claims until its call runs
  kManyClientsManyTurns,    // a host with many runtime ids has as many turns
  kBlockedCallsSetThePace,  // calls that their own bounds hold back get others refused
  kClassesStarveAtTheDoor,  // all calls of a higher class count as ahead, though classes take turns
  kClientsTakeNoTurns,      // calls run in the order of their arrival
  kBackgroundStarves,       // background calls wait while normal calls come
  kQueuedCallsNeverAge,     // a call waits in the queue as long as it takes
  kQueueRunsInOneTurn,      // an executor starts more of its queue before it polls again
  kOneClientHasAllControlPlaces,  // a client's control calls leave no places to those of others
  kQueuedCallIgnoresCancel,       // a call that waits runs although its caller has given it up
  // call context, interceptors
  kSpanIdReused,             // a call has the span id of the work that makes it
  kScopeForgetsContext,      // a scope has neither deadline nor trace of the one above it
  kContextStaysHome,         // a Task on another executor has neither deadline nor trace
  kContextEntryUnchecked,    // a context's reader trusts the lengths of its entries
  kContextUnbounded,         // a server takes more metadata than its bound
  kReservedKeyTaken,         // a caller may send metadata under Verbena's own keys
  kAmbientDeadlineIgnored,   // a call that a handler makes may outlast the handler's deadline
  kMemoryOutwaitsTheTask,    // a wait for memory or a loan goes on past the deadline of its Task
  kTrailersOfTheCallBefore,  // a CallInfo keeps the metadata of an earlier call
  kBroughtContextUnread,     // a context that travels one-sided is not there when the handler runs
  kInterceptorsReversed,     // the last interceptor of a chain runs first
  kInterceptedCallIsExecuted,  // an interceptor's refusal says that the handler ran
  kLargeContextInFrameTaken,   // a request's frame may hold a context of any size
  kInnerRefusalHasNoOutcome,   // an interceptor does not hear that a later one sent nothing
  kStreamOutlastsItsTask,      // a stream ignores the deadline of the Task that begins it
  kStreamInheritsAlways,       // a stream takes over the context that CallOptions decline
  kStreamContextUnawaited,     // a handler starts before a context beside the messages is there
  kCancelledTaskBeginsStream,  // the first await of a stream begins it though its Task is cancelled
  kLargeDetailsDropped,        // a failure that does not fit a frame loses its details
  kStreamFailureCut,           // the same of a stream's failure
  kBesideCountsLate,           // a string of such bytes has twice the memory that counts
  kContextWaitUnseen,          // nobody asks whether the client lives while its context is awaited
  kFailureDrawnOut,            // each part of a large failure may take the whole grace
  kLastMessageCountsOn,        // a large message counts although its stream has ended
  kSessionUsedAfterWait,       // a call looks at its link after a wait in which that may be lost
  kBesideUnbounded,            // a peer may send beside a stream's messages as much as it likes
  kMessageHooksReversed,       // the interceptor next to the wire sees a message that leaves first
  kPartedMessageUnseen,        // interceptors do not see a message that leaves in parts
  kLostCallNotExecuted,      // a call whose link is lost counts as not executed, though it was sent
  kFetchedCallExecuted,      // a call whose request never arrived in full counts as executed
  kFramePayloadUnchecked,    // a payload in a frame may be longer than the frame
  kFrameRoomUnchecked,       // a client may claim more room in a frame than a frame has
  kFramePayloadUncounted,    // a request's payload in a frame counts in no share
  kUnplacedPayloadLost,      // a response's payload in a frame that finds no memory is lost
  kFrameOverrunsCaller,      // a payload in a frame may be larger than the caller's memory
  kMessageForgottenInFrame,  // a payload goes into a frame that has no room for the message
  kStreamEndsMidMessage,     // a stream ends well though its last message is cut off
  kStreamLeftRunning,        // a stream that is given up goes on at the server
  kLateMessagesUnread,       // what comes for a stream that has ended counts as unread for ever
  kDestroyedReadTakesItem,   // a Read that is destroyed takes a message along
  kStreamWindowUnchecked,    // a peer may send on a stream as much as it likes
  kMessageSizeUnchecked,     // a message in parts may be as large as its first part claims
  kMessageAfterEndTaken,     // a stream takes messages behind the end of their side
  kReusedSlotKeepsCall,      // a call runs on though its client has used its slot again
  kStreamKindUnchecked,      // a method that streams is called as if it did not
  kAbandonedStreamRuns,      // a stream goes on when its owner is gone
  kWindowWakesNobody,        // a sender that gives up leaves those behind it waiting
  kLostStreamStillRead,      // a Read that no cancellation reaches outlasts its link
  kStreamOfNoneOpened,       // a unary handler runs on the request of the call before
  kPayloadOfNoneTaken,       // a response may have a payload though its method has none
  kFailuresUnbounded,        // a failure may have as many details as a landing holds
  kClaimedMessagesReserved,  // a stream takes the memory that its peer claims to need
  kOneClientsStreamsTakeAll,  // no share bounds what the streams of one client take
  kAssemblyStaysReserved,     // a message that was put together counts for ever
  kLargeMessagesLeaveMemory,  // a stream keeps the memory of its largest message
  kCancelledAwaitEndsStream,  // a cancelled await of a stream that connects ends the stream
  kOwnWindowUnchecked,        // a peer may send on a stream beyond what does not count in the link
  kOwnWindowUnused,           // streams that nobody reads stop the link's other streams
  kOwnWindowsToldLate,        // a stream's own window opens no sooner than the rest of it
  kTightLinkUntold,           // a stream that was read before the link's window was used up stops
  kLostStreamNotExecuted,     // a stream whose link is lost counts as not executed
  kCancelledReadStays,        // a Read that was cancelled is in the way of the next
  kLargeMessageUncounted,     // a stream's large message counts in no share while a handler has it
  kLargeWriteUncounted,       // a message that leaves in parts takes memory beyond every share
  kIdleWindowsTaken,          // a peer may tell a window again and again that does not open
  kStreamPayloadOfNoneTaken,  // a message may have a payload though its stream's have none
  kStreamPayloadUnchecked,    // a message's payload may be longer than the message
  kLaterPayloadTaken,         // a payload may be told of in the middle of its message
  kLeftReadTakesPayload,      // a Read that is destroyed takes its message's payload along
  kLeftPayloadBorrowed,       // a message goes on from the payload of a writer that is gone
  kStreamPayloadUncounted,    // payloads of a client's stream count in no share
  kCancelledMemoryWaitStays,  // a Read that was cancelled in its wait for memory is in the way
  kFailedStreamAwaitsMemory,  // a Read waits for memory for a message that its stream has dropped
  kDiscardLeavesMemoryWait,   // a Finish leaves the Read beside it waiting for memory
  kReturnedMessageOutlastsFinish,  // the message of a Read that was destroyed outlasts Finish
  kChangedMessageWakesNobody,      // the window of a message that changed is given back unseen
  kEndedStreamConnects,            // awaits of a stream that has ended go on connecting
  kClosedConnectionConnects,       // a connection that no channel uses connects for ever
  kCloseWakesNobody,               // who waits for a closed connection waits until its attempt ends
  kReadersLimitEndsTheLink,  // a message beyond its reader's limit ends the link of its sender
  kMessagesDoubleTheirRoom,  // a message that is put together has more memory than it counts for
  kLostWriteEndsWell,        // a stream ends well though a Write of its client has failed
  kCutMessageForgotten,      // a stream ends well though its deadline cut its last message off
  kShieldedWaitsForCaller,   // a Read that no cancellation reaches outlasts the caller's patience
  kReadsOweNothing,          // nobody notices that a client froze for whose message a handler waits
  kUnsentMessagesKept,       // handlers wait for a client that issues no credits for its streams
  kToldStreamsStayListed,    // a peer makes its link walk over all its streams again and again
  kStalledMessageKept,       // a message that stops coming keeps the memory that it claims

  // sets of servers
  kTargetUnchecked,        // an address of a target may be anything
  kBadLineSkipped,         // a list of servers loses the lines that are wrong
  kFileReadOnce,           // a file of servers that changes is not heard of
  kBadSetEmptiesChannel,   // a resolver that fails takes the last good set away
  kFailureNotTold,         // a resolver does not hear that a server cannot be reached
  kLeavingServerCut,       // a server that leaves a set loses the calls that are on it
  kLostServerStaysLost,    // a server that comes back gets no calls
  kFlappingUndamped,       // a server whose links do not last is connected without pauses
  kFirstAddressOnly,       // the other addresses of a server are never tried
  kWeightsIgnored,         // servers take equal turns, whatever their weights are
  kZoneIgnored,            // servers of other zones are called though the own one has some
  kSlotOfNobody,           // a server's name may leave keys with a server that is gone
  kClosedAttemptGoesOn,    // a connection that nobody uses goes on connecting until it times out
  kErrorsShowAll,          // a word of a list of servers fills logs and errors, however long it is
  kOpenSslUsedAtExit,      // a client of etcd goes on using OpenSSL while the process exits
  kResolvedTextUnchecked,  // a server's name may have control characters, and any length
  kSetsWithoutPause,       // a resolver that never waits keeps its executor busy
  kSetTakesAllLinks,       // one set of servers leaves no link to other channels
  kSubsetsAllAlike,        // all clients choose the same servers of a large set
  kSubsetNotRefilled,      // nobody takes the place of a server of a subset that is gone
  kHandlersErrorsEject,    // a server is ejected for what its handlers answer
  kCommonFaultEjects,      // servers are ejected for a fault that all of them have
  kSlowServerStays,        // a server that is slower than the others keeps its calls
  kEjectionsDoNotGrow,  // a server that fails again and again comes back as soon as the first time
  kEjectedForEver,      // a server that was ejected never gets calls again
  kAllServersEjected,   // a fault may eject every server of a set
  kStatesNotTold,       // who watches the servers of a set does not hear of a change
  kLostWhileItWaited,   // a call that waits for a server fails if its link is lost meanwhile
  kLookupsTakeFilesThreads,     // slow lookups of names stop the work of RunBlocking
  kCrossingCallsRefused,        // calls fail that cross the word of a server that it shuts down
  kWaitBeforeSendUnwatched,     // a client that falls silent before it is sent anything is kept
  kIdleLinkNotPinged,           // the silence of a peer is not noticed while nobody waits for it
  kAttemptsAtEtcdPileUp,        // sockets connect for minutes to an endpoint that is given up
  kEtcdEndpointKept,            // an endpoint of etcd that fails is asked again and again
  kLeaderNotDemanded,           // a member of etcd without a leader is believed
  kEtcdAnswerUnbounded,         // an answer of etcd takes memory without end
  kEtcdLengthBelieved,          // a length that a watch's answer claims ends the process
  kEndedLeaseKept,              // a server goes on with a lease that has ended
  kLostLeaseForgotten,          // a server that lost its lease stays out of etcd
  kDeletedKeyStaysAway,         // a server whose key somebody deleted stays out of etcd
  kRegistrationOutlivesServer,  // a server that has shut down is in etcd until its lease ends
  kCompactionIgnored,           // a watch of compacted revisions looks like a lost connection
  kEachChangeIsASet,            // a key that changes all the time keeps an old set of servers
  kCompactionsAtOnce,           // an etcd that compacts all the time is listed all the time
  kSilentWatchBelieved,         // a watch of etcd that is silent keeps an old set of servers
  kEtcdDeletionMissed,          // a server that left etcd stays in the set

  // deduplicated calls
  kDedupeNameUnchecked,         // a call may have a name that is none
  kAttemptsHaveOwnNames,        // a repeated call has another name, and runs again
  kResultsNeverAcknowledged,    // servers keep the results of all calls that have ended
  kEarlierAttemptForgotten,     // a server hears of a repeated call as if it was new
  kLastAttemptSpeaksForAll,     // a call is not executed, since its last attempt was not
  kLightestClientLoses,         // a client pushes out the results of those that have fewer
  kForeignNameTaken,            // a client gets the results of another's calls
  kReusedNameTaken,             // another request gets the result of the call with its name
  kRunningCallNotJoined,        // a call that is repeated while it runs runs twice
  kGoneWaitersKept,             // requests that end while their call runs take memory without end
  kDroppedResultRunsAgain,      // a call whose result was dropped runs again
  kForgottenClientIsNew,        // calls of a client that was forgotten run again after its next one
  kLaterNumbersAreNew,          // a forgotten client's calls run again after an earlier number
  kIncarnationIgnored,          // a server that has restarted runs calls that ran before
  kStoreNotAsked,               // a server that has restarted does not ask for stored names
  kAcknowledgedResultsKept,     // a server keeps results that nobody will ask for
  kRefusalsAreKept,             // a call that was not executed can never be executed
  kOpenResultKept,              // a call whose handler could not tell never learns how it ended
  kResultsKeptForever,          // results of a client that went away are never dropped
  kAllExpireAtOnce,             // one call pays for all results that are too old, and others wait
  kResultsUnbounded,            // a client that never acknowledges fills the server's memory
  kUnfinishedUnbounded,         // what handlers write in pieces takes memory without end
  kKeptTrailersLost,            // a repeated call gets no trailing metadata
  kKeptPayloadLost,             // a repeated call gets no payload
  kNamedCallEndsWithItsCaller,  // a caller that gives up an attempt cancels the call for the next
  kNamedCallEndsWithItsLink,    // a lost link cancels the call that its client will repeat
  kTakenPayloadIsRead,          // an interceptor that takes a deduplicated call's payload is fatal
  kKeptPayloadWithoutMemory,    // a call that outlives its link can make no payload for its result
  kGivenUpCallAsksItsCaller,    // a deduplicated call waits for memory from a caller that has left

  // retries and hedging
  kMutationRetried,           // a call that may have run runs again, whatever its method does
  kMutationHedged,            // calls that change something run twice at once
  kLastOutcomeAlone,          // a call says not_executed though an attempt before may have run
  kRetryBudgetIgnored,        // retries go on while all calls fail
  kPushBackIgnored,           // a server that asks for time gets the next attempt at once
  kRetriesInStep,             // clients that failed together come back together
  kAttemptsOutlastTheirTime,  // an attempt that hangs takes the whole call's time
  kRetryWithoutPayload,       // a second attempt goes without the payload that the first one has
  kRetryOnTheSameServer,      // a second attempt goes to the server that has just failed
  kRepeatedElsewhere,         // a deduplicated call that may have run is repeated elsewhere
  kKeptFailureAskedAgain,     // a deduplicated call's failure is asked for until attempts run out
  kHedgesDespitePushBack,     // an overloaded server makes its clients ask others at once
  kGoodAnswerOvertaken,       // a call fails, not executed, though another attempt has an answer
  kLosersRunOn,               // a call that is answered waits for its other attempts
  kConfigKeysUnbounded,       // a config of 1 MiB with many keys takes minutes to read
  kUnknownConfigKeyTaken,     // a key that is misspelt in a service config is passed over
  kConfigErrorWithoutPlace,   // an error in a service config does not say where

  // files, examples
  kFileReferenceNotAtomic,   // threads that share a File lose count of its Tasks
  kForeignRegionRegistered,  // a ring registers memory that another executor's thread may unmap
  kAnnotationDropsPayloads,  // a Status that gets more text loses its Outcome
  kFlushesOverlap,           // two flushes of one volume run at once, and one hears of the loss
  kVolumeReplacesFile,       // a new volume takes the place of a file that somebody else made
  kDatasyncSkipped,          // Datasync returns OK, and nothing was made durable
  kInterruptedNotRetried,    // an operation that a signal interrupted fails with EINTR
  kFoundNamesNotSynced,      // a volume is served whose name was never made durable
  kBatchNotSynced,           // writes are acknowledged before the disk has them
  kBatchMemberLost,          // of the writes of a batch the first alone is stored
  kRecordInBatchOfItsOwn,    // a crash may leave a write's data without the record beside it
  kRecordNotLookedUp,        // after a restart, calls that ran are taken for new ones
  kRepeatableForgotten,      // the record of a call that its client may still repeat is removed
  kWaitingValuesUnbounded,   // Gets that wait for memory hold all of their values meanwhile
  kWatcherHoldsMuch,         // a watcher whose caller does not read holds megabytes of changes
  kOneWriterHearsOfFailure,  // of a batch that failed, the others hear that it was stored
  kLeftWriteStaysQueued,     // a write is stored whose coroutine was destroyed before its turn
  kWritesFollowALostOne,     // a log on the disk lacks an entry before its last one

  // programs of libibverbs on soft devices
  kPeerLidIgnored,       // a peer is looked for by its GID alone, which a program need not know
  kBadBatchPosted,       // the rest of a batch with a mistake is posted
  kDestroyedStaysAlive,  // an object that was destroyed is taken for one that is alive

  // the replicated store
  kLostReplicaMayLead,      // a replica that left the in-sync set may become primary
  kLeaseCountsFromAnswer,   // a primary counts its lease from when it heard that it was renewed
  kStreamMakesEpoch,        // a backup believes each epoch that a stream names
  kOlderEpochTaken,         // a backup takes the log of a primary that was replaced
  kCommitBeforeSlowest,     // a write is acknowledged before all replicas in sync have it
  kCommitBeforeRemoval,     // a write is acknowledged without a replica that etcd has in sync
  kNameNotWithData,         // a write's data are stored without the name of its call
  kEntryOfPastEpochTaken,   // a backup takes an entry that is older than the one before
  kLaggingReplicaJoins,     // a replica joins the in-sync set without all that may be committed
  kStaleStateBelieved,      // etcd's answer from before a change counts as the change
  kIdleClientsStay,         // clients that wrote once and are gone keep all others out
  kForgottenCallRunsAgain,  // a repeated call of a client that was forgotten counts as a new one
  kStrangerStaysInSync,     // writes wait for a replica in sync that is none of the shard
  kStuckBackupKept,   // a backup whose disk takes nothing stays in sync, and writes wait for it
  kFormerDiskCounts,  // a replica becomes in sync by data that a copy has replaced

  // connection manager of the preloaded soft device
  kCmPrivateDataUnchecked,  // a peer's message holds more private data than its kind may
  kCmSilenceUnbounded,      // a connection without a request stays for ever
  kCmSilenceLocksOut,       // a new connection makes way for those without a request
  kCmStrangersUnbounded,    // connections without a request are not counted
  kCmBacklogUnbounded,      // requests that the program does not take pile up
  kCmForeignGidTaken,       // a stranger has a program's device connect to any address
  kCmReplyOutOfTurn,        // a connected peer replies again, and connects the queue pair again
};

}  // namespace verbena::internal::mutant

#endif  // VERBENA_TRANSPORT_LOG_FAULT_H_
