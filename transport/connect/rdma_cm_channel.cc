#include "verbena/transport/connect/rdma_cm_channel.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>

#include "verbena/transport/base/log.h"
#include "verbena/transport/connect/rdma_cm_status.h"

namespace verbena::internal {
namespace {

using boost::system::error_code;

CmEvent Copy(const rdma_cm_event& event) {
  const rdma_conn_param& param = event.param.conn;
  CmEvent copy{.type = event.event,
               .status = event.status,
               .id = event.id,
               .qp_number = param.qp_num,
               .responder_resources = param.responder_resources,
               .initiator_depth = param.initiator_depth};
  if (param.private_data != nullptr && param.private_data_len > 0) {
    copy.private_data.assign(static_cast<const char*>(param.private_data), param.private_data_len);
  }
  return copy;
}

}  // namespace

CmChannel::CmChannel(std::shared_ptr<IoThread> io, rdma_event_channel* channel)
    : io_(std::move(io)), channel_(channel), descriptor_(io_->context()) {}

CmChannel::~CmChannel() {
  if (descriptor_.is_open()) descriptor_.release();
  rdma_destroy_event_channel(channel_);
}

absl::StatusOr<std::shared_ptr<CmChannel>> CmChannel::Open() {
  rdma_event_channel* channel = rdma_create_event_channel();
  if (channel == nullptr) {
    return absl::UnavailableError(fmt::format(
        "rdma_cm cannot be used: {}; load its module, and give access to /dev/infiniband/rdma_cm: "
        "modprobe rdma_ucm",
        std::string(
            RdmaCmCallStatus("rdma_create_event_channel", errno, "no event channel").message())));
  }
  absl::StatusOr<std::shared_ptr<IoThread>> io = IoThread::Start();
  if (!io.ok()) {
    rdma_destroy_event_channel(channel);
    return io.status();
  }
  std::shared_ptr<CmChannel> opened(new CmChannel(*std::move(io), channel));
  const int flags = fcntl(channel->fd, F_GETFL);
  error_code error;
  if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return RdmaCmCallStatus("fcntl", errno, "rdma_cm's event channel");
  }
  opened->descriptor_.assign(channel->fd, error);
  if (error) return RdmaCmCallStatus("epoll_ctl", error.value(), "rdma_cm's event channel");
  opened->Post([opened] {
    opened->io_->Register(opened);
    opened->ReadWhenReady();
  });
  return opened;
}

absl::StatusOr<rdma_cm_id*> CmChannel::CreateId(CmEventListener& handler) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel_, &id, &handler, RDMA_PS_TCP) != 0) {
    return RdmaCmCallStatus("rdma_create_id", errno, "rdma_cm");
  }
  return id;
}

void CmChannel::DestroyId(rdma_cm_id* id) {
  const auto destroy = [id] { (void)rdma_destroy_id(id); };
  if (!Post(destroy)) destroy();
}

void CmChannel::CloseOnThread() {
  error_code ignored;
  descriptor_.cancel(ignored);
  // The event channel owns the descriptor.
  if (descriptor_.is_open()) descriptor_.release();
}

void CmChannel::ReadWhenReady() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [self = shared_from_this()](const error_code& error) {
                           if (error || !self->descriptor_.is_open()) return;
                           if (self->ReadAll()) self->ReadWhenReady();
                         });
}

bool CmChannel::ReadAll() {
  rdma_cm_event* event = nullptr;
  while (rdma_get_cm_event(channel_, &event) == 0) {
    const CmEvent copy = Copy(*event);
    rdma_ack_cm_event(event);
    static_cast<CmEventListener*>(copy.id->context)->OnCmEvent(copy);
  }
  if (errno == EAGAIN || errno == EINTR) return true;
  Log(LogLevel::kError,
      RdmaCmCallStatus("rdma_get_cm_event", errno, "no more events of rdma_cm").ToString());
  return false;
}

}  // namespace verbena::internal
