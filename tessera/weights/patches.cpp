// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/patches.h"

#include <cmath>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/weights/resize_matrix.h"

namespace tessera::weights {
namespace {

/// Dense, row by row.
struct Matrix {
  size_t rows = 0, columns = 0;
  std::vector<double> values;

  Matrix(size_t row_count, size_t column_count)
      : rows(row_count), columns(column_count), values(row_count * column_count) {}
  double& at(size_t row, size_t column) { return values[row * columns + column]; }
  double at(size_t row, size_t column) const { return values[row * columns + column]; }
};

Matrix resize_matrix(int64_t from, int64_t to) {
  Matrix matrix(static_cast<size_t>(to), static_cast<size_t>(from));
  const auto rows = bicubic_rows(from, to);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t k = 0; k < rows[i].weights.size(); ++k)
      matrix.at(i, static_cast<size_t>(rows[i].first) + k) = rows[i].weights[k];
  }
  return matrix;
}

Matrix transposed(const Matrix& matrix) {
  Matrix result(matrix.columns, matrix.rows);
  for (size_t i = 0; i < matrix.rows; ++i) {
    for (size_t j = 0; j < matrix.columns; ++j) result.at(j, i) = matrix.at(i, j);
  }
  return result;
}

/// a times the transposed b.
Matrix times_transposed(const Matrix& a, const Matrix& b) {
  Matrix result(a.rows, b.rows);
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t j = 0; j < b.rows; ++j) {
      double sum = 0;
      for (size_t k = 0; k < a.columns; ++k) sum += a.at(i, k) * b.at(j, k);
      result.at(i, j) = sum;
    }
  }
  return result;
}

/// x of a x = b, by Cholesky's factors of a. Requires: a is symmetric and positive definite.
Matrix solve(Matrix a, Matrix b) {
  for (size_t j = 0; j < a.rows; ++j) {
    double pivot = a.at(j, j);
    for (size_t k = 0; k < j; ++k) pivot -= a.at(j, k) * a.at(j, k);
    TESSERA_CHECK(pivot > 1e-9, "a resize that loses a dimension: pivot ", pivot);
    a.at(j, j) = std::sqrt(pivot);
    for (size_t i = j + 1; i < a.rows; ++i) {
      for (size_t k = 0; k < j; ++k) a.at(i, j) -= a.at(i, k) * a.at(j, k);
      a.at(i, j) /= a.at(j, j);
    }
  }
  for (size_t column = 0; column < b.columns; ++column) {
    for (size_t i = 0; i < a.rows; ++i) {
      for (size_t k = 0; k < i; ++k) b.at(i, column) -= a.at(i, k) * b.at(k, column);
      b.at(i, column) /= a.at(i, i);
    }
    for (size_t i = a.rows; i-- > 0;) {
      for (size_t k = i + 1; k < a.rows; ++k) b.at(i, column) -= a.at(k, i) * b.at(k, column);
      b.at(i, column) /= a.at(i, i);
    }
  }
  return b;
}

/// The pseudo-inverse of the transposed resize, [to, from]: a resize of bicubic rows has full rank, so that
/// it is B (B^T B)^-1 where patches grow and (B B^T)^-1 B where they shrink.
Matrix inverse_resize(int64_t from, int64_t to) {
  const Matrix resize = resize_matrix(from, to);
  if (to <= from) return solve(times_transposed(resize, resize), resize);
  const Matrix turned = transposed(resize);
  return transposed(solve(times_transposed(turned, turned), turned));
}

}  // namespace

std::vector<float> resample_patches(std::span<const float> kernels, int64_t from, int64_t to) {
  TESSERA_CHECK(from >= 1 && to >= 1, from, ' ', to);
  const auto before = static_cast<size_t>(from), after = static_cast<size_t>(to);
  const size_t count = kernels.size() / (before * before);
  TESSERA_CHECK(kernels.size() == count * before * before, kernels.size());
  if (from == to) return {kernels.begin(), kernels.end()};
  // The two dimensions are resized one after the other, so the pseudo-inverse is that of each.
  const Matrix inverse = inverse_resize(from, to);
  std::vector<float> result(count * after * after);
  Matrix kernel(before, before);
  for (size_t k = 0; k < count; ++k) {
    const auto own = kernels.subspan(k * before * before, before * before);
    kernel.values.assign(own.begin(), own.end());
    const Matrix along_x = times_transposed(inverse, kernel);  // [to, from]: x, y
    const Matrix both = times_transposed(inverse, along_x);    // [to, to]: y, x
    for (size_t i = 0; i < both.values.size(); ++i)
      result[k * after * after + i] = static_cast<float>(both.values[i]);
  }
  return result;
}

}  // namespace tessera::weights
