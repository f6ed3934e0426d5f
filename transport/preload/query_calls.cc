// Questions about a device and its port.

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "verbena/transport/preload/calls.h"
#include "verbena/transport/preload/context.h"
#include "verbena/transport/preload/real_library.h"

#undef ibv_query_port

namespace verbena::internal::preload {
namespace {

constexpr uint16_t kDefaultPkey = 0xffff;

int QueryPort(ibv_context* visible, uint8_t port, ibv_port_attr* attributes, size_t bytes) {
  auto* context = Alive<Context>(visible);
  if (context == nullptr || attributes == nullptr) return SetErrno(EINVAL);
  absl::StatusOr<ibv_port_attr> answer = context->QueryPort(port);
  if (!answer.ok()) return SetErrno(answer.status());
  std::memset(attributes, 0, bytes);
  std::memcpy(attributes, &*answer, std::min(bytes, sizeof(*answer)));
  return 0;
}

int QueryDeviceEx(ibv_context* visible, const ibv_query_device_ex_input* input,
                  ibv_device_attr_ex* attributes, size_t bytes) {
  auto* context = Alive<Context>(visible);
  if (context == nullptr || attributes == nullptr || (input != nullptr && input->comp_mask != 0) ||
      bytes < sizeof(attributes->orig_attr)) {
    return SetErrno(EINVAL);
  }
  ibv_device_attr_ex answer{};
  answer.orig_attr = context->attributes();
  answer.phys_port_cnt_ex = answer.orig_attr.phys_port_cnt;
  answer.device_cap_flags_ex = answer.orig_attr.device_cap_flags;
  std::memset(attributes, 0, bytes);
  std::memcpy(attributes, &answer, std::min(bytes, sizeof(answer)));
  return 0;
}

// 0, or an errno.
int QueryGidEntry(Context& context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                  size_t bytes) {
  if (port > 0xff || index > 0xffff) return SetErrno(EINVAL);
  absl::StatusOr<ibv_gid> gid =
      context.device().QueryGid(static_cast<uint8_t>(port), static_cast<int>(index));
  if (!gid.ok()) return SetErrno(index == 0 && port == 1 ? EIO : ENODATA);
  const ibv_gid_entry answer{.gid = *gid,
                             .gid_index = index,
                             .port_num = port,
                             .gid_type = IBV_GID_TYPE_IB,
                             .ndev_ifindex = 0};
  std::memset(entry, 0, bytes);
  std::memcpy(entry, &answer, std::min(bytes, sizeof(answer)));
  return 0;
}

}  // namespace

void FillQueryCalls(verbs_context& context) {
  context.query_port = QueryPort;
  context.query_device_ex = QueryDeviceEx;
}

}  // namespace verbena::internal::preload

namespace preload = verbena::internal::preload;

extern "C" {

int ibv_query_device(ibv_context* visible, ibv_device_attr* attributes) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_query_device, "ibv_query_device", EINVAL, visible, attributes);
  }
  if (attributes == nullptr) return preload::SetErrno(EINVAL);
  *attributes = context->attributes();
  return 0;
}

// Programs that were built before the struct grew get the part of it that they know.
int ibv_query_port(ibv_context* visible, uint8_t port, _compat_ibv_port_attr* attributes) {
  if (preload::Alive<preload::Context>(visible) == nullptr) {
    return preload::CallReal(&::ibv_query_port, "ibv_query_port", EINVAL, visible, port,
                             attributes);
  }
  constexpr size_t kOldBytes = offsetof(ibv_port_attr, port_cap_flags2);
  return preload::QueryPort(visible, port, reinterpret_cast<ibv_port_attr*>(attributes), kOldBytes);
}

int ibv_query_gid(ibv_context* visible, uint8_t port, int index, ibv_gid* gid) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_query_gid, "ibv_query_gid", -1, visible, port, index, gid);
  }
  absl::StatusOr<ibv_gid> answer = context->device().QueryGid(port, index);
  if (answer.ok() && gid != nullptr) {
    *gid = *answer;
    return 0;
  }
  preload::SetErrno(EINVAL);
  return -1;
}

int _ibv_query_gid_ex(ibv_context* visible, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t bytes) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::_ibv_query_gid_ex, "_ibv_query_gid_ex", EINVAL, visible, port,
                             index, entry, flags, bytes);
  }
  if (flags != 0 || entry == nullptr || port != 1) return preload::SetErrno(EINVAL);
  return preload::QueryGidEntry(*context, port, index, entry, bytes);
}

ssize_t _ibv_query_gid_table(ibv_context* visible, ibv_gid_entry* entries, size_t room,
                             uint32_t flags, size_t bytes) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::_ibv_query_gid_table, "_ibv_query_gid_table", -EINVAL, visible,
                             entries, room, flags, bytes);
  }
  if (flags != 0 || entries == nullptr || room == 0) return -preload::SetErrno(EINVAL);
  const int error = preload::QueryGidEntry(*context, 1, 0, entries, bytes);
  return error == 0 ? 1 : -error;
}

// libibverbs' own, for its own programs: no header declares it. `type` is 0 for InfiniBand.
int ibv_query_gid_type(ibv_context* visible, uint8_t port, unsigned index, int* type) {
  if (preload::Alive<preload::Context>(visible) == nullptr) {
    return preload::CallReal(&ibv_query_gid_type, "ibv_query_gid_type", -1, visible, port, index,
                             type);
  }
  if (port == 1 && index == 0 && type != nullptr) {
    *type = 0;
    return 0;
  }
  preload::SetErrno(EINVAL);
  return -1;
}

int ibv_query_pkey(ibv_context* visible, uint8_t port, int index, __be16* pkey) {
  if (preload::Alive<preload::Context>(visible) == nullptr) {
    return preload::CallReal(&::ibv_query_pkey, "ibv_query_pkey", -1, visible, port, index, pkey);
  }
  if (port == 1 && index == 0 && pkey != nullptr) {
    *pkey = htons(preload::kDefaultPkey);
    return 0;
  }
  preload::SetErrno(EINVAL);
  return -1;
}

int ibv_get_pkey_index(ibv_context* visible, uint8_t port, __be16 pkey) {
  if (preload::Alive<preload::Context>(visible) == nullptr) {
    return preload::CallReal(&::ibv_get_pkey_index, "ibv_get_pkey_index", -1, visible, port, pkey);
  }
  if (port == 1 && pkey == htons(preload::kDefaultPkey)) return 0;
  preload::SetErrno(EINVAL);
  return -1;
}

}  // extern "C"
