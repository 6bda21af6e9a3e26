#include "tessera/formats/jpeg_huffman.h"

#include <jpegint.h>

#include <bit>
#include <cstring>

namespace tessera::formats {
namespace {

constexpr int kBlock = DCTSIZE2;
constexpr uint32_t kEndOfBlock = kBlock;  // an advance that leaves the block from any position

/// Where the k-th coefficient of a scan lies in its block (zigzag, ITU-T T.81 figure A.6). Positions behind
/// the block, which "end of block" and broken runs lead to, share its last element, as in libjpeg.
constexpr std::array<uint8_t, 2 * kBlock> make_natural_order() {
  std::array<uint8_t, 2 * kBlock> order = {};
  int x = 0, y = 0;
  for (int k = 0; k < kBlock; ++k) {
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
  for (size_t k = kBlock; k < order.size(); ++k) order[k] = kBlock - 1;
  return order;
}
constexpr auto kNaturalOrder = make_natural_order();
static_assert(kNaturalOrder[2] == 8 && kNaturalOrder[35] == 56 && kNaturalOrder[63] == 63);

/// `size` bits as the signed value they stand for (T.81 figure F.12).
constexpr int32_t extend(int32_t value, uint32_t size) {
  return size == 0 || (value >> (size - 1)) != 0 ? value : value - (1 << size) + 1;
}

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
  entries.fill(kPartial | kLong);
  int32_t code = 0, index = 0;
  for (uint32_t length = 1; length <= 16; ++length, code <<= 1) {
    offset[length] = index - code;
    for (int32_t end = index + from.bits[length]; index < end; ++index, ++code) {
      if (length > kLookBits) continue;
      const uint32_t symbol = symbols[static_cast<size_t>(index)], size = dc ? symbol : symbol & 15;
      const uint32_t rest = kLookBits - length;
      uint32_t* first = &entries[static_cast<size_t>(code) << rest];
      for (uint32_t i = 0; i < 1U << rest; ++i) {
        if (size > rest) {
          first[i] = size << 16 | advance_of(symbol) << 8 | kPartial | length;
        } else {
          const int32_t value = extend(static_cast<int32_t>(i >> (rest - size)), size);
          first[i] = static_cast<uint32_t>(value) << 16 | advance_of(symbol) << 8 | (length + size);
        }
      }
    }
    last_code[length] = from.bits[length] == 0 ? -1 : code - 1;
  }
}

// At least 56 bits afterwards: a symbol takes 31 at most.
inline void JpegHuffman::Bits::refill() {
  if (end - next >= 8) [[likely]] {
    uint64_t bytes;
    std::memcpy(&bytes, next, 8);
    if (!holds_ff(bytes)) [[likely]] {
      if constexpr (std::endian::native == std::endian::little) bytes = __builtin_bswap64(bytes);
      window |= bytes >> count;
      next += (63 - count) >> 3;
      count |= 56;
      return;
    }
  }
  refill_by_bytes();
}

void JpegHuffman::Bits::refill_by_bytes() {
  window = count == 0 ? 0 : window & ~uint64_t{0} << (64 - count);
  for (; count <= 56; count += 8) {
    uint64_t byte = 0;
    if (end - next >= 2 && next[0] == 0xFF && next[1] == 0) {
      byte = 0xFF;
      next += 2;
    } else if (end - next >= 1 && next[0] != 0xFF) {
      byte = *next++;
    } else {
      made_up += 8;
    }
    window |= byte << (56 - count);
  }
}

inline void JpegHuffman::Bits::drop(uint32_t bits) {
  window <<= bits;
  count -= static_cast<int>(bits);
}

inline int32_t JpegHuffman::Bits::take_value(uint32_t size) {
  if (size == 0) return 0;
  const int32_t value = extend(static_cast<int32_t>(window >> (64 - size)), size);
  drop(size);
  return value;
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
  info.entropy->decode_mcu = decode_mcu;
}

boolean JpegHuffman::decode_mcu(j_decompress_ptr info, JBLOCKROW* blocks) {
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

template <bool kKeep>
bool JpegHuffman::decode_blocks(const jpeg_decompress_struct& info, JBLOCKROW* blocks) {
  Bits bits = bits_;  // in registers
  for (int i = 0; i < info.blocks_in_MCU; ++i) {
    Component& component = components_[static_cast<size_t>(info.MCU_membership[i])];
    bits.refill();
    if (!decode_dc(bits, component)) return false;
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

inline bool JpegHuffman::decode_dc(Bits& bits, Component& component) {
  const Table& table = *component.dc;
  const uint32_t entry = table.entries[bits.window >> (64 - kLookBits)];
  int32_t difference = static_cast<int32_t>(entry) >> 16;
  if ((entry & Table::kPartial) == 0) {
    bits.drop(entry & 63);
  } else {
    uint32_t size = entry >> 16;
    if ((entry & Table::kLong) == 0) {
      bits.drop(entry & 63);
    } else if (!long_symbol(bits, table, &size)) {
      return false;
    }
    difference = bits.take_value(size);
  }
  component.last_dc += difference;
  // No image has them; how they wrap round is for libjpeg to say.
  return component.last_dc >= INT16_MIN && component.last_dc <= INT16_MAX;
}

template <bool kKeep>
inline bool JpegHuffman::decode_ac(Bits& bits, const Table& table, JCOEF* block) {
  uint32_t k = 1;
  const auto put = [&](int32_t value, uint32_t advance) {
    k += advance;
    if constexpr (kKeep) block[kNaturalOrder[k - 1]] = static_cast<JCOEF>(value);
  };
  while (true) {
    bits.refill();
    // Two symbols of kLookBits and a long one fit into 56 bits.
    uint32_t entry = table.entries[bits.window >> (64 - kLookBits)];
    for (int i = 0; i < 2 && (entry & Table::kPartial) == 0; ++i) {
      bits.drop(entry & 63);
      put(static_cast<int32_t>(entry) >> 16, entry >> 8 & 255);
      if (k >= kBlock) return true;
      entry = table.entries[bits.window >> (64 - kLookBits)];
    }
    if ((entry & Table::kPartial) == 0) {
      bits.drop(entry & 63);
      put(static_cast<int32_t>(entry) >> 16, entry >> 8 & 255);
    } else if ((entry & Table::kLong) == 0) {
      bits.drop(entry & 63);
      put(bits.take_value(entry >> 16), entry >> 8 & 255);
    } else {
      uint32_t symbol;
      if (!long_symbol(bits, table, &symbol)) return false;
      put(bits.take_value(symbol & 15), table.advance_of(symbol));
    }
    if (k >= kBlock) return true;
  }
}

bool JpegHuffman::long_symbol(Bits& bits, const Table& table, uint32_t* symbol) {
  for (uint32_t length = kLookBits + 1; length <= 16; ++length) {
    const auto code = static_cast<int32_t>(bits.window >> (64 - length));
    if (code > table.last_code[length]) continue;
    *symbol = table.symbols[static_cast<size_t>(code + table.offset[length]) & 255];
    bits.drop(length);
    return true;
  }
  return false;
}

bool JpegHuffman::restart() {
  if (bits_.count - bits_.made_up >= 8) return false;  // bytes that belong to no MCU
  while (bits_.end - bits_.next >= 2 && bits_.next[0] == 0xFF && bits_.next[1] == 0xFF) ++bits_.next;
  if (bits_.end - bits_.next < 2 || bits_.next[0] != 0xFF || bits_.next[1] != JPEG_RST0 + next_restart_) {
    return false;
  }
  bits_ = {0, 0, 0, bits_.next + 2, bits_.end};
  next_restart_ = (next_restart_ + 1) & 7;
  until_restart_ = restart_interval_;
  for (Component& component : components_) component.last_dc = 0;
  return true;
}

}  // namespace tessera::formats
