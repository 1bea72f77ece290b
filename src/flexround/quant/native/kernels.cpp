// The formulas of quant/functions.py for float32 on a CPU, in one pass over memory each way.
//
// Elements have the bits of the plain formulas, NaN too: nothing is contracted or reassociated. Sums run in fixed lanes
// and chunks: neither the processor's vectors nor the number of threads changes a bit. Each loop is compiled for several
// processors (target_clones), of which the loader chooses.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define EVERY_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_CPU
#endif
#define INLINE inline __attribute__((always_inline))

using at::Tensor;
using In = const float* __restrict;
using Out = float* __restrict;
using Bytes = const uint8_t* __restrict;

constexpr int64_t LANES = 32, CHUNK = 8192;  // elements
constexpr float STRETCH = 1.2f, LEAST = -0.1f;  // of AdaRound's rectified sigmoid

In in(const Tensor& x) { return x.const_data_ptr<float>(); }
Out out(Tensor& x) { return x.mutable_data_ptr<float>(); }

INLINE float clip(float x, float low, float high) {
  x = x < low ? low : x;  // NaN stays
  return x > high ? high : x;
}
INLINE float stretch(float sigmoid) { return clip(sigmoid * STRETCH + LEAST, 0, 1); }
INLINE bool is_kept(uint8_t byte, int shift, int threshold) { return ((byte << shift) & 255) < threshold; }

// The sums over 0 <= i < n of the K numbers that `terms(i)` gives: of 16 in each lane, and of these in double precision.
template <size_t K, class Terms> INLINE std::array<double, K> sums(int64_t n, const Terms& terms) {
  std::array<double, K> totals = {};
  for (int64_t i = 0; i < n;) {
    float lanes[K][LANES] = {};
    const int64_t stop = std::min(n, i + 16 * LANES);
    const auto add = [&](int64_t i, int64_t j) {
      const auto found = terms(i);
      for (size_t k = 0; k < K; ++k) lanes[k][j] += found[k];
    };
    for (; i + LANES <= stop; i += LANES)
      for (int64_t j = 0; j < LANES; ++j) add(i + j, j);
    for (int64_t j = 0; i < stop; ++i, ++j) add(i, j);
    for (size_t k = 0; k < K; ++k)
      for (const float lane : lanes[k]) totals[k] += lane;
  }
  return totals;
}

// Elements that are kept, as `Kept` of quant/activation.py has them: the bits of plane p, from p * bits on of each byte,
// are those of the elements from p * size on.
struct Mask {
  const uint8_t* bytes;
  int64_t bits, threshold, count, planes, size, chunks;

  Mask(const std::optional<Tensor>& kept, int64_t bits, int64_t threshold, int64_t count)
      : bytes(kept ? kept->const_data_ptr<uint8_t>() : nullptr), bits(bits), threshold(threshold), count(count),
        planes(kept ? 8 / bits : 1), size((count + planes - 1) / planes), chunks((size + CHUNK - 1) / CHUNK) {}

  // Calls `run(chunk, first element, elements, their bytes, shift)` for chunks of one plane each.
  template <class Run> void each(const Run& run) const {
    at::parallel_for(0, planes * chunks, 4, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t plane = chunk / chunks, offset = chunk % chunks * CHUNK, start = plane * size + offset;
        const int64_t stop = std::min({count, (plane + 1) * size, start + CHUNK});
        if (start < stop) run(chunk, start, stop - start, bytes + offset, int(plane * bits));
      }
    });
  }
};

template <bool DROPS> EVERY_CPU void quantize(
    In x, Out y, int64_t n, float step, float low, float high, Bytes bytes, int shift, int threshold) {
  for (int64_t i = 0; i < n; ++i) {
    const float given = x[i], value = clip(std::nearbyint(given / step), low, high) * step;
    y[i] = !DROPS || is_kept(bytes[i], shift, threshold) ? value : given;
  }
}

Tensor step_quantize(
    const Tensor& x, const Tensor& step, double low, double high, const std::optional<Tensor>& kept, int64_t bits,
    int64_t threshold) {
  Tensor y = at::empty_like(x);
  Mask(kept, bits, threshold, x.numel()).each([&, s = *in(step)](int64_t, int64_t i, int64_t n, Bytes b, int shift) {
    (kept ? quantize<true> : quantize<false>)(in(x) + i, out(y) + i, n, s, low, high, b, shift, threshold);
  });
  return y;
}

// Writes the gradient of x, returns that of the step. What is dropped counts as 0, whose gradient passes.
template <bool DROPS> EVERY_CPU double step_gradients(
    In grad, In x, Out grad_x, int64_t n, float step, float low, float high, Bytes bytes, int shift, int threshold) {
  return sums<1>(n, [&](int64_t i) {
    const float g = grad[i], given = x[i];
    const float u = (!DROPS || is_kept(bytes[i], shift, threshold) ? given : 0.f) / step;
    const float code = std::nearbyint(u), clipped = clip(code, low, high);
    const bool outside = __builtin_islessgreater(code, clipped);  // false for NaN
    grad_x[i] = outside ? 0.f : g;
    return std::array{g * (clipped - (outside ? 0.f : u))};
  })[0];
}

std::tuple<Tensor, Tensor> step_quantize_backward(
    const Tensor& grad, const Tensor& x, const Tensor& step, double low, double high, const std::optional<Tensor>& kept,
    int64_t bits, int64_t threshold) {
  Tensor grad_x = at::empty_like(x), grad_step = at::empty({}, step.options());
  const Mask mask(kept, bits, threshold, x.numel());
  std::vector<double> parts(mask.planes * mask.chunks);
  mask.each([&, s = *in(step)](int64_t chunk, int64_t i, int64_t n, Bytes b, int shift) {
    parts[chunk] = (kept ? step_gradients<true> : step_gradients<false>)(
        in(grad) + i, in(x) + i, out(grad_x) + i, n, s, low, high, b, shift, threshold);
  });
  double total = 0;
  for (const double part : parts) total += part;
  *out(grad_step) = total;
  return {grad_x, grad_step};
}

EVERY_CPU void mix(In full, In other, Out y, int64_t n, Bytes bytes, int shift, int threshold) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = full[i], kept = other[i];
    y[i] = is_kept(bytes[i], shift, threshold) ? kept : x;
  }
}

// Some rows of two caches (N, K): the elements of the second that are kept, and the others of the first.
Tensor mix_rows(
    const Tensor& full, const Tensor& other, const Tensor& rows, const Tensor& kept, int64_t bits, int64_t threshold) {
  const int64_t width = full.size(1), *index = rows.const_data_ptr<int64_t>();
  Tensor y = at::empty({rows.numel(), width}, full.options());
  Mask(kept, bits, threshold, y.numel()).each([&](int64_t, int64_t start, int64_t n, Bytes b, int shift) {
    for (int64_t i = start, stop = start + n; i < stop;) {
      const int64_t at = index[i / width] * width + i % width, count = std::min(stop - i, width - i % width);
      mix(in(full) + at, in(other) + at, out(y) + i, count, b + (i - start), shift, threshold);
      i += count;
    }
  });
  return y;
}

// Calls `run(row, its first element, elements, s1, low, high)` for the rows of a weight (R, K); the grid is (3, R).
template <class Run> void for_rows(const Tensor& weight, const Tensor& grid, const Run& run) {
  const int64_t count = weight.size(0), width = weight.size(1), some = 4 * CHUNK / std::max<int64_t>(1, width);
  at::parallel_for(0, count, std::max<int64_t>(1, some), [&](int64_t row, int64_t last) {
    const float* of = in(grid);
    for (; row < last; ++row) run(row, row * width, width, of[row], of[count + row], of[2 * count + row]);
  });
}

// The tensor that `run(first element, where to write it, elements, s1, low, high)` writes, row by row.
template <class Run> Tensor by_rows(const Tensor& weight, const Tensor& grid, const Run& run) {
  Tensor y = at::empty_like(weight);
  for_rows(weight, grid, [&](int64_t, int64_t i, auto... row) { run(i, out(y) + i, row...); });
  return y;
}

EVERY_CPU void divide(In w, In divisor, Out y, int64_t n, float step, float low, float high) {
  for (int64_t i = 0; i < n; ++i) y[i] = clip(std::nearbyint(w[i] / divisor[i]), low, high) * step;
}

Tensor divide_round(const Tensor& w, const Tensor& divisor, const Tensor& grid) {
  return by_rows(w, grid, [&](int64_t i, auto... row) { divide(in(w) + i, in(divisor) + i, row...); });
}

// Writes the gradients of d2 = ln S2 and, if it is wanted, of the weight; returns the sums of the former and of grad * y.
template <bool WEIGHT> EVERY_CPU std::array<double, 2> divide_gradients(
    In grad, In w, In divisor, Out grad_d, Out grad_w, int64_t n, float step, float low, float high) {
  return sums<2>(n, [&](int64_t i) {
    const float g = grad[i], d = divisor[i], u = w[i] / d, code = std::nearbyint(u), clipped = clip(code, low, high);
    const bool outside = __builtin_islessgreater(code, clipped);
    if (WEIGHT) grad_w[i] = g * ((outside ? 0.f : step) / d);
    const float slope = g * ((outside ? 0.f : u) * -step);
    grad_d[i] = slope;
    return std::array{slope, g * (clipped * step)};
  });
}

// The gradients of d2 and of the weight (the former again unless it is wanted), and the two sums of each row, (2, R).
std::tuple<Tensor, Tensor, Tensor> divide_round_backward(
    const Tensor& grad, const Tensor& w, const Tensor& divisor, const Tensor& grid, bool wanted) {
  Tensor grad_d = at::empty_like(w), grad_w = wanted ? at::empty_like(w) : grad_d;
  Tensor totals = at::empty({2, w.size(0)}, w.options());
  for_rows(w, grid, [&](int64_t row, int64_t i, auto... rest) {
    const auto found = (wanted ? divide_gradients<true> : divide_gradients<false>)(
        in(grad) + i, in(w) + i, in(divisor) + i, out(grad_d) + i, out(grad_w) + i, rest...);
    for (int k = 0; k < 2; ++k) out(totals)[k * w.size(0) + row] = found[k];
  });
  return {grad_d, grad_w, totals};
}

// The value s1 clamp(floor + h(alpha)), or its gradient in alpha times another one.
template <bool GRADIENT> EVERY_CPU void soften(
    In sigmoid, In floor, In grad, Out y, int64_t n, float step, float low, float high) {
  for (int64_t i = 0; i < n; ++i) {
    const float sigma = sigmoid[i], h = stretch(sigma), code = h + floor[i], g = grad[i];
    const bool moves = (h > 0) & (h < 1) & (code >= low) & (code <= high);
    const float slope = moves ? g * ((sigma - sigma * sigma) * STRETCH * step) : 0.f;
    y[i] = GRADIENT ? slope : clip(code, low, high) * step;
  }
}

Tensor sigmoid_round(const Tensor& sigmoid, const Tensor& floor, const Tensor& grid, const std::optional<Tensor>& grad) {
  return by_rows(sigmoid, grid, [&](int64_t i, auto... row) {
    (grad ? soften<true> : soften<false>)(in(sigmoid) + i, in(floor) + i, in(grad ? *grad : sigmoid) + i, row...);
  });
}

TORCH_LIBRARY(flexround, m) {
  m.def("step_quantize", step_quantize);
  m.def("step_quantize_backward", step_quantize_backward);
  m.def("mix_rows", mix_rows);
  m.def("divide_round", divide_round);
  m.def("divide_round_backward", divide_round_backward);
  m.def("sigmoid_round", sigmoid_round);
}
