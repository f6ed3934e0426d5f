// Calls beside ids: devices, names, options, and refusals of what the soft device does not have.

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "verbena/transport/preload/rdma_cm_devices.h"
#include "verbena/transport/preload/rdma_cm_id.h"

namespace verbena::internal::preload {
namespace {

// rdma_freeaddrinfo frees all of it, by free().
sockaddr* CopyOf(const sockaddr* address, socklen_t bytes) {
  void* const copy = std::malloc(bytes);
  if (copy != nullptr) std::memcpy(copy, address, bytes);
  return static_cast<sockaddr*>(copy);
}

constexpr uint8_t kLongestAckTimeout = 31;  // a field of five bits

int SetIdOption(CmId& id, int option, const void* value, size_t bytes) {
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  int number = 0;
  switch (option) {
    case RDMA_OPTION_ID_REUSEADDR:
    case RDMA_OPTION_ID_AFONLY:
      if (bytes != sizeof(int)) return CmFail(EINVAL);
      std::memcpy(&number, value, sizeof(number));
      (option == RDMA_OPTION_ID_AFONLY ? id.guarded().address_family_only
                                       : id.guarded().reuse_address) = number != 0;
      return 0;
    // The soft device uses no network that has types of service.
    case RDMA_OPTION_ID_TOS:
      return bytes == sizeof(uint8_t) ? 0 : CmFail(EINVAL);
    case RDMA_OPTION_ID_ACK_TIMEOUT: {
      const uint8_t timeout = bytes == sizeof(uint8_t) ? *static_cast<const uint8_t*>(value) : 255;
      if (timeout > kLongestAckTimeout) return CmFail(EINVAL);
      id.guarded().terms.ack_timeout = timeout;
      return 0;
    }
    default:
      return CmFail(ENOSYS);
  }
}

void CopySource(const rdma_addrinfo& hints, rdma_addrinfo& info) {
  if (info.ai_src_len != 0 || hints.ai_src_addr == nullptr || hints.ai_src_len == 0) return;
  info.ai_src_addr = CopyOf(hints.ai_src_addr, hints.ai_src_len);
  info.ai_src_len = hints.ai_src_len;
}

// The address `found`, as the program's own or its peer's; without one, that of the hints.
rdma_addrinfo* Converted(const addrinfo* found, const rdma_addrinfo& hints) {
  auto* const info = static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo)));
  if (info == nullptr) return nullptr;
  info->ai_flags = hints.ai_flags;
  info->ai_family = found != nullptr ? found->ai_family : hints.ai_family;
  info->ai_port_space = hints.ai_port_space != 0 ? hints.ai_port_space : RDMA_PS_TCP;
  info->ai_qp_type = hints.ai_qp_type != 0 ? hints.ai_qp_type : IBV_QPT_RC;
  if (found != nullptr && (hints.ai_flags & RAI_PASSIVE) != 0) {
    info->ai_src_addr = CopyOf(found->ai_addr, found->ai_addrlen);
    info->ai_src_len = found->ai_addrlen;
  } else if (found != nullptr) {
    info->ai_dst_addr = CopyOf(found->ai_addr, found->ai_addrlen);
    info->ai_dst_len = found->ai_addrlen;
  } else if (hints.ai_dst_addr != nullptr && hints.ai_dst_len != 0) {
    info->ai_dst_addr = CopyOf(hints.ai_dst_addr, hints.ai_dst_len);
    info->ai_dst_len = hints.ai_dst_len;
  }
  CopySource(hints, *info);
  return info;
}

constexpr const char* kNoMulticast = "rdma_join_multicast: the soft device has no datagrams";

}  // namespace
}  // namespace verbena::internal::preload

extern "C" {

using namespace verbena::internal::preload;

ibv_context** rdma_get_devices(int* count) {
  const auto& devices = CmDevices::Get().devices();
  auto** const list =
      static_cast<ibv_context**>(std::calloc(devices.size() + 1, sizeof(ibv_context*)));
  if (list == nullptr) return nullptr;
  for (size_t i = 0; i < devices.size(); ++i) list[i] = devices[i].verbs;
  if (count != nullptr) *count = static_cast<int>(devices.size());
  return list;
}

void rdma_free_devices(ibv_context** list) { std::free(static_cast<void*>(list)); }

int rdma_getaddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                     rdma_addrinfo** result) {
  if (result == nullptr || (node == nullptr && service == nullptr && hints == nullptr)) {
    return CmFail(EINVAL);
  }
  static constexpr rdma_addrinfo kNoHints = {};
  if (hints == nullptr) hints = &kNoHints;
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  if ((hints->ai_flags & RAI_PASSIVE) != 0) wanted.ai_flags |= AI_PASSIVE;
  if ((hints->ai_flags & RAI_NUMERICHOST) != 0) wanted.ai_flags |= AI_NUMERICHOST;
  if ((hints->ai_flags & RAI_FAMILY) != 0 || hints->ai_family != 0) {
    wanted.ai_family = hints->ai_family;
  }
  addrinfo* found = nullptr;
  if (node == nullptr && service == nullptr) {
    *result = Converted(nullptr, *hints);
    return *result != nullptr ? 0 : CmFail(ENOMEM);
  }
  // As librdmacm, it returns what getaddrinfo returns: programs print it by gai_strerror.
  if (const int error = getaddrinfo(node, service, &wanted, &found); error != 0) return error;
  *result = Converted(found, *hints);
  freeaddrinfo(found);
  return *result != nullptr ? 0 : EAI_MEMORY;
}

void rdma_freeaddrinfo(rdma_addrinfo* info) {
  while (info != nullptr) {
    rdma_addrinfo* const next = info->ai_next;
    std::free(info->ai_src_addr);
    std::free(info->ai_dst_addr);
    std::free(info);
    info = next;
  }
}

int rdma_set_option(rdma_cm_id* id, int level, int option, void* value, size_t bytes) {
  if (value == nullptr) return CmFail(EINVAL);
  if (level != RDMA_OPTION_ID) return CmFail(ENOSYS);
  return SetIdOption(Behind(id), option, value, bytes);
}

int rdma_join_multicast(rdma_cm_id* /*id*/, sockaddr* /*address*/, void* /*context*/) {
  return CmRefuse(kNoMulticast);
}

int rdma_join_multicast_ex(rdma_cm_id* /*id*/, rdma_cm_join_mc_attr_ex* /*attributes*/,
                           void* /*context*/) {
  return CmRefuse(kNoMulticast);
}

int rdma_leave_multicast(rdma_cm_id* /*id*/, sockaddr* /*address*/) {
  return CmFail(EADDRNOTAVAIL);  // it can have joined none
}

// Enhanced connection establishment is for options of vendors: there are none.
int rdma_set_local_ece(rdma_cm_id* /*id*/, ibv_ece* ece) {
  return ece != nullptr ? 0 : CmFail(EINVAL);
}

int rdma_get_remote_ece(rdma_cm_id* /*id*/, ibv_ece* ece) {
  if (ece == nullptr) return CmFail(EINVAL);
  *ece = {};
  return 0;
}

}  // extern "C"
