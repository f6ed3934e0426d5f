#include "verbena/transport/preload/rdma_cm_devices.h"

#include <algorithm>
#include <cerrno>

#include "verbena/transport/base/check.h"

namespace verbena::internal::preload {
namespace {

constexpr uint8_t kPort = 1;
constexpr int kGidIndex = 0;

uint8_t AtMost255(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

}  // namespace

const CmDevices& CmDevices::Get() {
  static const CmDevices& devices = *new CmDevices;
  return devices;
}

CmDevices::CmDevices() {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  if (list == nullptr) return;
  for (int i = 0; i < count; ++i) {
    ibv_context* const verbs = ibv_open_device(list[i]);
    if (verbs == nullptr) continue;
    ibv_device_attr attributes = {};
    ibv_pd* const pd = ibv_alloc_pd(verbs);
    ibv_gid gid = {};
    if (pd == nullptr || ibv_query_device(verbs, &attributes) != 0 ||
        ibv_query_gid(verbs, kPort, kGidIndex, &gid) != 0) {
      if (pd != nullptr) ibv_dealloc_pd(pd);
      ibv_close_device(verbs);
      continue;
    }
    devices_.push_back({.verbs = verbs,
                        .pd = pd,
                        .gid = gid,
                        .responder_resources = AtMost255(attributes.max_qp_rd_atom),
                        .initiator_depth = AtMost255(attributes.max_qp_init_rd_atom)});
  }
  ibv_free_device_list(list);
}

void CmDevices::Bind(rdma_cm_id& id) const {
  VERBENA_CHECK(!devices_.empty());
  id.verbs = devices_.front().verbs;
  id.pd = devices_.front().pd;
  id.port_num = kPort;
}

const CmDevices::Device& CmDevices::Of(const rdma_cm_id& id) const {
  const auto found = std::ranges::find(devices_, id.verbs, &Device::verbs);
  VERBENA_CHECK(found != devices_.end());
  return *found;
}

int CmDevices::Describe(const rdma_cm_id& id, CmMessage& message) {
  ibv_gid gid;
  ibv_port_attr port = {};
  if (ibv_query_gid(id.verbs, id.port_num, kGidIndex, &gid) != 0) return EIO;
  if (const int error = ibv_query_port(id.verbs, id.port_num, &port); error != 0) return error;
  std::copy_n(gid.raw, sizeof(gid.raw), message.gid.begin());
  message.lid = port.lid;
  message.mtu = static_cast<uint8_t>(port.active_mtu);
  return 0;
}

}  // namespace verbena::internal::preload
