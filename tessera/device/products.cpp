// SPDX-License-Identifier: Apache-2.0
#include "tessera/device/products.h"

#include "tessera/device/registered.h"

namespace tessera::device {
namespace {

Registered<DeviceProducts> registered_products;

}  // namespace

void register_products(const DeviceProducts* products, c10::DeviceType device) {
  registered_products.set(products, device);
}

const DeviceProducts* products_for(c10::Device device) { return registered_products.get(device); }

}  // namespace tessera::device
