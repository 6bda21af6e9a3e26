// SPDX-License-Identifier: Apache-2.0
// A faster Huffman decoder in the place of libjpeg-turbo's own, which is where most of the time of a JPEG
// goes.
//
// libjpeg's decoders are function pointers of the decompression; this one is put in for the commonest kind of
// file (sequential, 8 bits, Huffman, one scan) and decodes what is well-formed. At anything else (a marker in
// the middle, a code that does not exist) it gives up: the caller starts again with libjpeg's, so that what
// damaged files look like, and which are refused, stays libjpeg's decision.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>

// libjpeg's header needs <cstdio> before it.
#include <jpeglib.h>

namespace tessera::formats {

class JpegHuffman {
 public:
  /// Whether the image whose header was read is of the kind this decoder knows.
  static bool suits(const jpeg_decompress_struct& info);

  /// After jpeg_start_decompress, before the first row. Takes `info.client_data`; the whole file must be in
  /// the source's buffer. `give_up` does not return (longjmp); libjpeg's state is worthless then. Only
  /// coefficients of the MCU columns [first, last] need be right.
  void attach(jpeg_decompress_struct& info, void (*give_up)(j_decompress_ptr), JDIMENSION first,
              JDIMENSION last);

  /// After the last row: libjpeg reads on from where this decoder has come to.
  void leave(jpeg_decompress_struct& info) const;

 private:
  static constexpr int kLookBits = 10;
  static constexpr int kTables = NUM_HUFF_TBLS;

  /// Note [Huffman tables]: the next kLookBits bits name an entry, from which a symbol and its value are
  /// taken without a branch:
  ///   5..0 bits of code and value together, 13..8 of the code, 21..16 of the value, 31..24 by how many
  ///   places the position advances. "End of block" advances beyond the block's end.
  /// kLong instead: a longer code, or more than kShortBits together.
  struct Table {
    static constexpr uint32_t kLong = 0x40;
    std::array<uint32_t, 1 << kLookBits> entries;
    std::array<int32_t, 17> last_code;  // largest code of a length, -1 if none
    std::array<int32_t, 17> offset;     // symbol index = code + offset
    std::array<uint8_t, 256> symbols;
    bool is_dc = false;

    void build(const JHUFF_TBL& from, bool dc);
    uint32_t advance_of(uint32_t symbol) const;
  };

  /// The next bits of the scan, left-aligned; below `count` lie copies of bits to come, or zeros.
  struct Bits {
    uint64_t window = 0;
    int64_t count = 0;
    const uint8_t* next = nullptr;
    const uint8_t* end = nullptr;
    int64_t made_up = 0;  // of `count`: zeros beyond a marker or the end
  };

  struct Component {
    const Table* dc = nullptr;
    const Table* ac = nullptr;
    int32_t last_dc = 0;
  };

  /// A symbol by the canonical code, of any length.
  struct Symbol {
    Bits bits;  // behind it
    int32_t value = 0;
    uint32_t advance = 0;
    bool good = false;
  };

  // By value: what has no address stays in registers.
  static Bits refill_by_bytes(Bits bits);
  static Bits refill(Bits bits);
  static Bits drop(Bits bits, uint32_t count);
  static int32_t value_of(uint64_t window, uint32_t entry);
  static Symbol any_symbol(Bits bits, const Table& table);
  template <bool kKeep>
  static bool decode_ac(Bits& bits, const Table& table, JCOEF* block);
  template <bool kKeep>
  bool decode_blocks(const jpeg_decompress_struct& info, JBLOCKROW* blocks);
  static boolean decode_mcu(j_decompress_ptr info, JBLOCKROW* blocks);
  static boolean decode_mcu_anywhere(j_decompress_ptr info, JBLOCKROW* blocks);
  static boolean decode_mcu_bmi2(j_decompress_ptr info, JBLOCKROW* blocks);
  bool restart();

  std::array<Table, kTables> dc_, ac_;
  std::array<Component, MAX_COMPS_IN_SCAN> components_;
  Bits bits_;
  void (*give_up_)(j_decompress_ptr) = nullptr;
  JDIMENSION column_ = 0, columns_ = 0, first_kept_ = 0, last_kept_ = 0;
  unsigned restart_interval_ = 0, until_restart_ = 0;
  uint8_t next_restart_ = 0;
};

}  // namespace tessera::formats
