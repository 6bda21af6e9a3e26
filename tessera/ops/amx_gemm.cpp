#include "tessera/ops/amx_gemm.h"

#include "tessera/ops/amx_tiles.h"
#include "tessera/ops/avx512_finish.h"

namespace tessera::ops::amx {
namespace {

// Half of the L2 cache: as much of a packed factor stays there while all rows pass by.
constexpr int64_t kCacheElements = 512 * 1024;

// A longer k is cut: too few columns of it would fit there.
constexpr int64_t kDeep = 4096, kCut = 2048;

int64_t column_chunk(int64_t padded_k) {
  const int64_t columns = kCacheElements / padded_k / 32 * 32;
  return columns < 32 ? 32 : columns;
}

void finish_block(const Epilogue& e, const float* c, int64_t row, int64_t rows, int64_t column,
                  int64_t columns) {
  for (int64_t half = 0; half < 32 && column + half < columns; half += 16) {
    const __mmask16 mask = avx512::first_lanes(columns - column - half);
    for (int64_t i = 0; i < rows; ++i) {
      avx512::finish(e, _mm512_load_ps(c + i * 32 + half), (row + i) * columns + column + half, column + half,
                     mask);
    }
  }
}

}  // namespace

void pack_transposed(const uint16_t* w, int64_t n_size, int64_t k_size, int64_t begin, int64_t end,
                     uint16_t* packed) {
  const int64_t first = begin * 32, count = min_of(n_size, end * 32) - first;
  pack_right_transposed(w + first * k_size, k_size, count, k_size, packed + first * padded(k_size));
}

// Row by row, as w lies: 16 columns of every row would be a new page each.
void pack(const uint16_t* w, int64_t k_size, int64_t n_size, int64_t begin, int64_t end, bool gelu,
          uint16_t* packed) {
  alignas(64) uint16_t made[32 * 16];
  for (int64_t block = begin; block < end; ++block) {
    const uint16_t* rows = w + block * 32 * n_size;
    uint16_t* out = packed + block * kTile;
    for (int64_t n = 0; n < padded(n_size); n += 16, out += 16 * padded(k_size)) {
      const __mmask16 mask = n < n_size ? avx512::first_lanes(n_size - n) : __mmask16(0);
      __m512i r[16];
      const int64_t count = min_of(k_size - block * 32, 32);
      if (gelu && n < n_size) avx512::gelu_of(rows + n, n_size, count, min_of(n_size - n, 16), made, 16);
      interleave(gelu ? made : rows + n, gelu ? 16 : n_size, count, mask, r, nullptr);
      store_tile(r, out);
    }
  }
}

namespace {

struct alignas(64) Block {
  float c[kRows * kRows];
};

// Columns [first, last) of a product whose k is cut: one cut of the packed factor stays in the L2 cache while
// all rows pass by, and sums wait in `sums`, one Block for each 32 rows and 32 columns, for the next. The
// order of the sums, and so every bit, is that of one long k. `scratch`: 32 rows of one cut.
void multiply_cut(const uint16_t* a, int64_t begin, int64_t end, int64_t k, const uint16_t* packed,
                  int64_t first, int64_t last, int64_t columns, const Epilogue& epilogue, Block* sums,
                  uint16_t* scratch) {
  const int64_t padded_k = padded(k);
  for (int64_t cut = 0; cut < padded_k; cut += kCut) {
    const int64_t depth = min_of(kCut, padded_k - cut);
    Block* block = sums;
    for (int64_t row = begin; row < end; row += kRows) {
      const int64_t rows = min_of(end - row, kRows);
      copy_padded(a + row * k + cut, k, rows, min_of(k - cut, depth), scratch);
      for (int64_t column = first; column < last; column += 32, ++block) {
        product(scratch, 16 * depth, 32, depth, packed + column * padded_k + cut * 16, 16 * padded_k,
                depth / 32, block->c, kRows, cut > 0);
        if (cut + depth == padded_k) finish_block(epilogue, block->c, row, rows, column, columns);
      }
    }
  }
}

void multiply_deep(const uint16_t* a, int64_t begin, int64_t end, int64_t k, const uint16_t* packed,
                   int64_t columns, const Epilogue& epilogue) {
  const int64_t chunk = column_chunk(kCut), row_blocks = blocks(end - begin);
  const avx512::Buffer<Block> sums(row_blocks * chunk / 32);
  const avx512::Buffer<uint16_t> scratch(kRows * kCut);
  for (int64_t first = 0; first < columns; first += chunk) {
    multiply_cut(a, begin, end, k, packed, first, min_of(first + chunk, columns), columns, epilogue,
                 sums.data(), scratch.data());
  }
}

}  // namespace

void multiply(const uint16_t* a, int64_t begin, int64_t end, int64_t k, const uint16_t* packed,
              int64_t columns, const Epilogue& epilogue) {
  const Tiles tiles;
  if (k > kDeep) {
    multiply_deep(a, begin, end, k, packed, columns, epilogue);
    return;
  }
  const int64_t padded_k = padded(k), chunk = column_chunk(padded_k);
  alignas(64) float c[kRows * kRows];
  const avx512::Buffer<uint16_t> padded_rows((end - begin) % kRows == 0 && k == padded_k ? 0
                                                                                         : kRows * padded_k);
  for (int64_t first = 0; first < columns; first += chunk) {
    for (int64_t row = begin; row < end; row += kRows) {
      const int64_t rows = min_of(end - row, kRows);
      const uint16_t* left = a + row * k;
      if (rows < kRows || k != padded_k) {
        copy_padded(left, k, rows, k, padded_rows.data());
        left = padded_rows.data();
      }
      for (int64_t column = first; column < min_of(first + chunk, columns); column += 32) {
        product(left, 16 * padded_k, 32, padded_k, packed + column * padded_k, 16 * padded_k, padded_k / 32,
                c, kRows);
        finish_block(epilogue, c, row, rows, column, columns);
      }
    }
  }
}

int64_t transposed_group(int64_t k) {
  const int64_t rows = kCacheElements / 2 / padded(k) / kRows * kRows;
  return rows < kRows ? kRows : rows;
}

void multiply_transposed(const uint16_t* w, int64_t w_columns, int64_t begin, int64_t end, int64_t k,
                         const uint16_t* packed, int64_t columns, const Epilogue& epilogue, float* sums,
                         uint16_t* scratch) {
  const Tiles tiles;
  const int64_t padded_k = padded(k), chunk = column_chunk(padded_k), group = transposed_group(k);
  alignas(64) float c[kRows * kRows], block_sums[kRows];
  for (int64_t group_begin = begin; group_begin < end; group_begin += group) {
    const int64_t group_end = min_of(group_begin + group, end);
    for (int64_t row = group_begin; row < group_end; row += kRows) {
      const int64_t rows = min_of(group_end - row, kRows);
      pack_left(w + row, w_columns, k, rows, scratch + (row - group_begin) * padded_k, block_sums);
      for (int64_t i = 0; i < rows; ++i) {
        sums[row + i] = block_sums[i];
      }
    }
    for (int64_t first = 0; first < columns; first += chunk) {
      for (int64_t row = group_begin; row < group_end; row += kRows) {
        const uint16_t* left = scratch + (row - group_begin) * padded_k;
        for (int64_t column = first; column < min_of(first + chunk, columns); column += 32) {
          product(left, 16 * padded_k, kTile, 32, packed + column * padded_k, 16 * padded_k, padded_k / 32, c,
                  kRows);
          finish_block(epilogue, c, row, min_of(group_end - row, kRows), column, columns);
        }
      }
    }
  }
}

void gelu_backward(const uint16_t* gradient, const uint16_t* linear, uint16_t* out, int64_t count) {
  avx512::gelu_backward_of(gradient, linear, out, count);
}

}  // namespace tessera::ops::amx
