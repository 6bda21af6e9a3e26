// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/jpeg_huffman.h"

#include <jpegint.h>

#include <algorithm>
#include <bit>
#include <cstring>

// The loop is compiled twice: shifts by a number of bits, of which it is full, are quicker with BMI2.
#define TESSERA_INLINE __attribute__((always_inline)) inline
#if defined(__x86_64__)
#define TESSERA_BMI2 __attribute__((target("bmi,bmi2")))
#else
#define TESSERA_BMI2
#endif

namespace tessera::formats {
namespace {

constexpr int kCoefficients = DCTSIZE2;
constexpr uint32_t kShortBits = 18;              // three such symbols fit into a refilled window
constexpr uint32_t kEndOfBlock = kCoefficients;  // an advance that leaves the block from any position

/// Where the k-th coefficient of a scan lies in its block (zigzag, ITU-T T.81 figure A.6). Positions behind
/// the block, which "end of block" and broken runs lead to, share its last element, as in libjpeg.
constexpr std::array<uint8_t, 2 * kCoefficients> make_natural_order() {
  std::array<uint8_t, 2 * kCoefficients> order = {};
  int x = 0, y = 0;
  for (int k = 0; k < kCoefficients; ++k) {
    order[static_cast<size_t>(k)] = static_cast<uint8_t>(8 * y + x);
    const bool up = (x + y) % 2 == 0;
    if (up ? x == 7 : y == 7) {
      ++(up ? y : x);
    } else if (up ? y == 0 : x == 0) {
      ++(up ? x : y);
    } else {
      x += up ? 1 : -1;
      y += up ? -1 : 1;
    }
  }
  for (size_t k = kCoefficients; k < order.size(); ++k) order[k] = kCoefficients - 1;
  return order;
}
constexpr auto kNaturalOrder = make_natural_order();
static_assert(kNaturalOrder[2] == 8 && kNaturalOrder[35] == 56 && kNaturalOrder[63] == 63);

constexpr bool holds_ff(uint64_t bytes) {
  return ((bytes & ~(bytes + 0x0101010101010101U)) & 0x8080808080808080U) != 0;
}

}  // namespace

uint32_t JpegHuffman::Table::advance_of(uint32_t symbol) const {
  if (is_dc) return 1;
  const uint32_t run = symbol >> 4;
  return (symbol & 15) == 0 && run != 15 ? kEndOfBlock : run + 1;
}

// libjpeg has checked that the lengths form a code and that no table has more than 256 symbols.
void JpegHuffman::Table::build(const JHUFF_TBL& from, bool dc) {
  is_dc = dc;
  std::memcpy(symbols.data(), from.huffval, symbols.size());
  entries.fill(kLong);
  int32_t code = 0, index = 0;
  for (uint32_t length = 1; length <= 16; ++length, code <<= 1) {
    offset[length] = index - code;
    for (int32_t end = index + from.bits[length]; index < end; ++index, ++code) {
      if (length > kLookBits) continue;
      const uint32_t symbol = symbols[static_cast<size_t>(index)], size = dc ? symbol : symbol & 15;
      if (length + size > kShortBits) continue;
      const uint32_t entry = advance_of(symbol) << 24 | size << 16 | length << 8 | (length + size);
      std::fill_n(&entries[static_cast<size_t>(code) << (kLookBits - length)], 1 << (kLookBits - length),
                  entry);
    }
    last_code[length] = from.bits[length] == 0 ? -1 : code - 1;
  }
}

// At least 56 bits afterwards: a symbol takes 31 at most.
TESSERA_INLINE JpegHuffman::Bits JpegHuffman::refill(Bits bits) {
  if (bits.end - bits.next >= 8) [[likely]] {
    uint64_t bytes;
    std::memcpy(&bytes, bits.next, 8);
    if (!holds_ff(bytes)) [[likely]] {
      if constexpr (std::endian::native == std::endian::little) bytes = __builtin_bswap64(bytes);
      bits.window |= bytes >> bits.count;
      bits.next += (63 - bits.count) >> 3;
      bits.count |= 56;
      return bits;
    }
  }
  return refill_by_bytes(bits);
}

JpegHuffman::Bits JpegHuffman::refill_by_bytes(Bits bits) {
  bits.window = bits.count == 0 ? 0 : bits.window & ~uint64_t{0} << (64 - bits.count);
  for (; bits.count <= 56; bits.count += 8) {
    uint64_t byte = 0;
    const int64_t left = bits.end - bits.next;
    if (left >= 2 && bits.next[0] == 0xFF && bits.next[1] == 0) {
      byte = 0xFF;
      bits.next += 2;
    } else if (left >= 1 && bits.next[0] != 0xFF) {
      byte = *bits.next++;
    } else {
      bits.made_up += 8;
    }
    bits.window |= byte << (56 - bits.count);
  }
  return bits;
}

TESSERA_INLINE JpegHuffman::Bits JpegHuffman::drop(Bits bits, uint32_t count) {
  bits.window <<= count & 63;
  bits.count -= count & 63;
  return bits;
}

// The bits behind the code as the signed value they stand for (T.81 figure F.12): with a first bit of 0 they
// count from -2^size + 1.
TESSERA_INLINE int32_t JpegHuffman::value_of(uint64_t window, uint32_t entry) {
  const uint32_t size = entry >> 16 & 63;
  const uint64_t bits = window << (entry >> 8 & 63);
  const auto magnitude = static_cast<int32_t>(bits >> 1 >> (63 - size));
  const auto is_negative = static_cast<int32_t>(bits >> 63) - 1;  // all bits set, or none
  return magnitude + (is_negative & (1 - (1 << size)));
}

JpegHuffman::Symbol JpegHuffman::any_symbol(Bits bits, const Table& table) {
  for (uint32_t length = 1; length <= 16; ++length) {
    const auto code = static_cast<int32_t>(bits.window >> (64 - length));
    if (code > table.last_code[length]) continue;
    const uint32_t symbol = table.symbols[static_cast<size_t>(code + table.offset[length]) & 255];
    const uint32_t size = table.is_dc ? symbol : symbol & 15;
    const int32_t value = value_of(bits.window, size << 16 | length << 8);
    return {drop(bits, length + size), value, table.advance_of(symbol), true};
  }
  return {};
}

bool JpegHuffman::suits(const jpeg_decompress_struct& info) {
  return info.progressive_mode == 0 && info.arith_code == 0 && info.data_precision == 8 &&
         info.comps_in_scan == info.num_components;
}

void JpegHuffman::attach(jpeg_decompress_struct& info, void (*give_up)(j_decompress_ptr), JDIMENSION first,
                         JDIMENSION last) {
  std::array<bool, kTables> dc_built = {}, ac_built = {};
  for (int i = 0; i < info.comps_in_scan; ++i) {
    const jpeg_component_info& from = *info.cur_comp_info[i];
    const auto dc = static_cast<size_t>(from.dc_tbl_no), ac = static_cast<size_t>(from.ac_tbl_no);
    if (!dc_built[dc]) dc_[dc].build(*info.dc_huff_tbl_ptrs[dc], true);
    if (!ac_built[ac]) ac_[ac].build(*info.ac_huff_tbl_ptrs[ac], false);
    dc_built[dc] = ac_built[ac] = true;
    components_[static_cast<size_t>(i)] = {&dc_[dc], &ac_[ac], 0};
  }
  bits_ = {};
  bits_.next = info.src->next_input_byte;
  bits_.end = bits_.next + info.src->bytes_in_buffer;
  give_up_ = give_up;
  column_ = 0;
  columns_ = info.MCUs_per_row;
  first_kept_ = first;
  last_kept_ = last;
  restart_interval_ = until_restart_ = info.restart_interval;
  next_restart_ = 0;
  info.client_data = this;
  info.entropy->decode_mcu = decode_mcu_anywhere;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("bmi2")) info.entropy->decode_mcu = decode_mcu_bmi2;
#endif
}

void JpegHuffman::leave(jpeg_decompress_struct& info) const {
  // Bytes of the data that are read already are no loss, and `next` never stands behind a marker.
  info.src->next_input_byte = bits_.next;
  info.src->bytes_in_buffer = static_cast<size_t>(bits_.end - bits_.next);
}

template <bool kKeep>
TESSERA_INLINE bool JpegHuffman::decode_ac(Bits& in_out, const Table& table, JCOEF* block) {
  Bits bits = in_out;
  uint32_t k = 0;  // position of the last coefficient
  while (true) {
    bits = refill(bits);
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      const uint32_t entry = table.entries[bits.window >> (64 - kLookBits)];
      int32_t value = 0;
      if ((entry & Table::kLong) == 0) [[likely]] {
        if constexpr (kKeep) value = value_of(bits.window, entry);
        bits = drop(bits, entry);
        k += entry >> 24;
      } else {
        if (i > 0) break;  // it may need more bits than are left
        const Symbol symbol = any_symbol(bits, table);
        if (!symbol.good) return false;
        bits = symbol.bits;
        value = symbol.value;
        k += symbol.advance;
        i = 2;
      }
      if constexpr (kKeep) block[kNaturalOrder[k]] = static_cast<JCOEF>(value);
      if (k >= kCoefficients - 1) {
        in_out = bits;
        return true;
      }
    }
  }
}

template <bool kKeep>
TESSERA_INLINE bool JpegHuffman::decode_blocks(const jpeg_decompress_struct& info, JBLOCKROW* blocks) {
  Bits bits = bits_;
  for (int i = 0; i < info.blocks_in_MCU; ++i) {
    Component& component = components_[static_cast<size_t>(info.MCU_membership[i])];
    bits = refill(bits);
    const uint32_t entry = component.dc->entries[bits.window >> (64 - kLookBits)];
    if ((entry & Table::kLong) == 0) [[likely]] {
      component.last_dc += value_of(bits.window, entry);
      bits = drop(bits, entry);
    } else {
      const Symbol symbol = any_symbol(bits, *component.dc);
      if (!symbol.good) return false;
      bits = symbol.bits;
      component.last_dc += symbol.value;
    }
    // No image has larger ones; how they wrap round is for libjpeg to say.
    if (component.last_dc < INT16_MIN || component.last_dc > INT16_MAX) return false;
    JCOEF* block = nullptr;
    if constexpr (kKeep) {
      block = *blocks[i];
      block[0] = static_cast<JCOEF>(component.last_dc);
    }
    if (!decode_ac<kKeep>(bits, *component.ac, block)) return false;
  }
  bits_ = bits;
  return bits.count >= bits.made_up;
}

TESSERA_INLINE boolean JpegHuffman::decode_mcu(j_decompress_ptr info, JBLOCKROW* blocks) {
  auto& self = *static_cast<JpegHuffman*>(info->client_data);
  if (self.restart_interval_ != 0) {
    if (self.until_restart_ == 0 && !self.restart()) self.give_up_(info);
    --self.until_restart_;
  }
  const bool keep = blocks != nullptr && self.column_ >= self.first_kept_ && self.column_ <= self.last_kept_;
  if (++self.column_ == self.columns_) self.column_ = 0;
  const bool good =
      keep ? self.decode_blocks<true>(*info, blocks) : self.decode_blocks<false>(*info, nullptr);
  if (!good) self.give_up_(info);
  return TRUE;
}

boolean JpegHuffman::decode_mcu_anywhere(j_decompress_ptr info, JBLOCKROW* blocks) {
  return decode_mcu(info, blocks);
}

TESSERA_BMI2 boolean JpegHuffman::decode_mcu_bmi2(j_decompress_ptr info, JBLOCKROW* blocks) {
  return decode_mcu(info, blocks);
}

bool JpegHuffman::restart() {
  if (bits_.count - bits_.made_up >= 8) return false;  // bytes that belong to no MCU
  while (bits_.end - bits_.next >= 2 && bits_.next[0] == 0xFF && bits_.next[1] == 0xFF) ++bits_.next;
  if (bits_.end - bits_.next < 2 || bits_.next[0] != 0xFF || bits_.next[1] != JPEG_RST0 + next_restart_) {
    return false;
  }
  bits_ = {0, 0, bits_.next + 2, bits_.end, 0};
  next_restart_ = (next_restart_ + 1) & 7;
  until_restart_ = restart_interval_;
  for (Component& component : components_) component.last_dc = 0;
  return true;
}

}  // namespace tessera::formats
