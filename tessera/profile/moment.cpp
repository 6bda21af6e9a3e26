// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/moment.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::profile {

Moment::Moment(c10::Device device) : host_(std::chrono::steady_clock::now()) {
  if (device.is_cpu() || device.is_meta()) return;                 // which queue nothing
  event_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // which measures time
  event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

double Moment::seconds_to(const Moment& later) const {
  if (event_) return event_->elapsedTime(*later.event_) / 1e3;
  return std::chrono::duration<double>(later.host_ - host_).count();
}

}  // namespace tessera::profile
