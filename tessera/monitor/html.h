// SPDX-License-Identifier: Apache-2.0
// Text and pictures as parts of a page. Pure, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera::monitor {

/// `text` as text or attribute value of a page; control characters but line ends and tabs become spaces.
std::string escape_html(std::string_view text);

std::string base64(std::span<const uint8_t> bytes);

/// `<section>` with a heading; nothing where `body` is empty. `aside`: a short text beside the heading.
std::string section(std::string_view id, std::string_view heading, std::string_view aside,
                    std::string_view body);

}  // namespace tessera::monitor
