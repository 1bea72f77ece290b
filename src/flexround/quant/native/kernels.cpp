// The formulas of quant/functions.py for float32 on a CPU, in one pass over memory each way.
//
// Elements have the bits of the plain formulas, NaN too: nothing is contracted or reassociated. Sums run in fixed lanes
// and chunks: neither the processor's vectors nor the number of threads changes a bit. Each loop is compiled for several
// processors (target_clones), of which the loader chooses.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define EVERY_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_CPU
#endif
#define INLINE inline __attribute__((always_inline))
using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<Tensor>;
using In = const float* __restrict;
using Out = float* __restrict;

constexpr int64_t LANES = 32, CHUNK = 8192;  // elements
constexpr float STRETCH = 1.2f, LEAST = -0.1f;  // of AdaRound's rectified sigmoid

In in(const Tensor& x) { return x.const_data_ptr<float>(); }
Out out(Tensor& x) { return x.mutable_data_ptr<float>(); }

INLINE float clip(float x, float low, float high) {
  x = x < low ? low : x;  // NaN stays
  return x > high ? high : x;
}

struct Grid {
  float step, low, high;
  INLINE float clipped(float code) const { return clip(code, low, high); }
};

// Which elements of a run are kept: those whose bits, on top of their byte, are below the threshold.
struct Kept {
  const uint8_t* bytes;
  int shift, threshold;
  INLINE bool operator[](int64_t i) const { return ((bytes[i] << shift) & 255) < threshold; }
};

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

// `Kept` of quant/activation.py: the bits of plane p, from p * bits on of each byte, are for the elements from p * size on.
struct Mask {
  const uint8_t* bytes;
  int64_t bits, threshold, count, planes, size, chunks;

  Mask(const MaybeTensor& kept, int64_t bits, int64_t threshold, int64_t count)
      : bytes(kept ? kept->const_data_ptr<uint8_t>() : nullptr), bits(bits), threshold(threshold), count(count),
        planes(kept ? 8 / bits : 1), size((count + planes - 1) / planes), chunks((size + CHUNK - 1) / CHUNK) {}

  // Calls `run(chunk, first element, elements, which are kept)` for chunks of one plane each.
  template <class Run> void each(const Run& run) const {
    at::parallel_for(0, planes * chunks, 4, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t plane = chunk / chunks, offset = chunk % chunks * CHUNK, start = plane * size + offset;
        const int64_t stop = std::min({count, (plane + 1) * size, start + CHUNK});
        if (start < stop) run(chunk, start, stop - start, Kept{bytes + offset, int(plane * bits), int(threshold)});
      }
    });
  }
};

template <bool DROPS> EVERY_CPU void quantize(In x, Out y, int64_t n, Grid grid, Kept kept) {
  for (int64_t i = 0; i < n; ++i) {
    const float given = x[i], value = grid.clipped(std::nearbyint(given / grid.step)) * grid.step;
    y[i] = !DROPS || kept[i] ? value : given;
  }
}

// Writes the gradient of x, returns that of the step. What is dropped counts as 0, whose gradient passes.
template <bool DROPS> EVERY_CPU double step_gradients(In grad, In x, Out grad_x, int64_t n, Grid grid, Kept kept) {
  return sums<1>(n, [&](int64_t i) {
    const float g = grad[i], given = x[i], u = (!DROPS || kept[i] ? given : 0.f) / grid.step;
    const float code = std::nearbyint(u), clipped = grid.clipped(code);
    const bool outside = __builtin_islessgreater(code, clipped);  // false for NaN
    grad_x[i] = outside ? 0.f : g;
    return std::array{g * (clipped - (outside ? 0.f : u))};
  })[0];
}

struct StepQuantize : torch::autograd::Function<StepQuantize> {
  static Tensor forward(
      AutogradContext* ctx, const Tensor& given, const Tensor& step, double low, double high, const MaybeTensor& kept,
      int64_t bits, int64_t threshold) {
    const Tensor x = given.is_non_overlapping_and_dense() ? given : given.contiguous();
    Tensor y = at::empty_like(x);
    const Grid grid{*in(step), float(low), float(high)};
    const Mask mask(kept, bits, threshold, x.numel());
    mask.each([&](int64_t, int64_t i, int64_t n, Kept some) {
      (kept ? quantize<true> : quantize<false>)(in(x) + i, out(y) + i, n, grid, some);
    });
    ctx->save_for_backward({x, step, kept.value_or(Tensor())});
    ctx->saved_data["numbers"] = std::vector<double>{low, high, double(bits), double(threshold)};
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto numbers = ctx->saved_data["numbers"].toDoubleVector();
    const Tensor &x = saved[0], &step = saved[1];
    const MaybeTensor kept = saved[2].defined() ? MaybeTensor(saved[2]) : std::nullopt;
    const Tensor grad = grads[0].strides() == x.strides() ? grads[0] : at::empty_like(x).copy_(grads[0]);
    Tensor grad_x = at::empty_like(x), grad_step = at::empty_like(step);
    const Mask mask(kept, numbers[2], numbers[3], x.numel());
    const Grid grid{*in(step), float(numbers[0]), float(numbers[1])};
    std::vector<double> parts(mask.planes * mask.chunks);
    mask.each([&](int64_t chunk, int64_t i, int64_t n, Kept some) {
      parts[chunk] = (kept ? step_gradients<true> : step_gradients<false>)(
          in(grad) + i, in(x) + i, out(grad_x) + i, n, grid, some);
    });
    *out(grad_step) = std::accumulate(parts.begin(), parts.end(), 0.0);
    return {grad_x, grad_step, {}, {}, {}, {}, {}};
  }
};

EVERY_CPU void mix(In full, In other, Out y, int64_t n, Kept kept) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = full[i], quantized = other[i];
    y[i] = kept[i] ? quantized : x;
  }
}

// Some rows of two caches (N, K): the elements of the second that are kept, and the others of the first.
Tensor mix_rows(
    const Tensor& full, const Tensor& other, const Tensor& rows, const Tensor& kept, int64_t bits, int64_t threshold) {
  const int64_t width = full.size(1), *index = rows.const_data_ptr<int64_t>();
  Tensor y = at::empty({rows.numel(), width}, full.options());
  Mask(kept, bits, threshold, y.numel()).each([&](int64_t, int64_t i, int64_t n, Kept some) {
    for (int64_t count; n > 0; i += count, n -= count, some.bytes += count) {
      const int64_t at = index[i / width] * width + i % width;
      count = std::min(n, width - i % width);
      mix(in(full) + at, in(other) + at, out(y) + i, count, some);
    }
  });
  return y;
}

// The dimensions of a weight whose rows have a step each: output channels, and their groups if `step` has them.
int64_t dims(const Tensor& step) { return step.dim() > 2 && step.size(1) > 1 ? 2 : 1; }

std::vector<int64_t> row_shape(const Tensor& weight, int64_t dims) {
  std::vector<int64_t> shape(weight.dim(), 1);
  std::copy_n(weight.sizes().begin(), dims, shape.begin());
  return shape;
}
// s1 and the bounds of each row, (3, R).
Tensor grids_of(const Tensor& weight, int64_t dims, const Tensor& step, const Tensor& low, const Tensor& high) {
  const auto shape = row_shape(weight, dims);
  return at::stack({step.expand(shape).reshape(-1), low.expand(shape).reshape(-1), high.expand(shape).reshape(-1)});
}

// Calls `run(row, its first element, elements, grid)` for the rows of a weight (R, K).
template <class Run> void for_rows(const Tensor& weight, const Tensor& grids, const Run& run) {
  const int64_t count = grids.size(1), width = weight.numel() / std::max<int64_t>(1, count);
  const int64_t some = std::max<int64_t>(1, 4 * CHUNK / std::max<int64_t>(1, width));
  at::parallel_for(0, count, some, [&](int64_t row, int64_t last) {
    const float* of = in(grids);
    for (; row < last; ++row) run(row, row * width, width, Grid{of[row], of[count + row], of[2 * count + row]});
  });
}

EVERY_CPU void divide(In w, In divisor, Out y, int64_t n, Grid grid) {
  for (int64_t i = 0; i < n; ++i) y[i] = grid.clipped(std::nearbyint(w[i] / divisor[i])) * grid.step;
}

// Writes the gradients of d2 = ln S2 and, if it is wanted, of the weight; returns the sums of the former and of grad * y.
template <bool WEIGHT> EVERY_CPU std::array<double, 2> divide_gradients(
    In grad, In w, In divisor, Out grad_d, Out grad_w, int64_t n, Grid grid) {
  return sums<2>(n, [&](int64_t i) {
    const float g = grad[i], d = divisor[i], u = w[i] / d, code = std::nearbyint(u), clipped = grid.clipped(code);
    const bool outside = __builtin_islessgreater(code, clipped);
    const float slope = g * ((outside ? 0.f : u) * -grid.step);
    if (WEIGHT) grad_w[i] = g * ((outside ? 0.f : grid.step) / d);
    grad_d[i] = slope;
    return std::array{slope, g * (clipped * grid.step)};
  });
}

struct DivideRound : torch::autograd::Function<DivideRound> {
  static Tensor forward(
      AutogradContext* ctx, const Tensor& weight, const Tensor& start, const Tensor& d1, const MaybeTensor& d2,
      const MaybeTensor& d3, const MaybeTensor& d4, const Tensor& low, const Tensor& high) {
    const Tensor w = weight.contiguous(), s1 = start * d1.exp();
    Tensor y = at::empty_like(w), divisor = s1;
    for (const auto& small : {d3, d4})  // first, because they are small
      if (small) divisor = divisor * small->exp();
    divisor = (d2 ? d2->exp().mul_(divisor) : divisor.expand_as(w)).contiguous();
    const Tensor grids = grids_of(w, dims(start), s1, low, high);
    for_rows(w, grids, [&](int64_t, int64_t i, int64_t n, Grid grid) {
      divide(in(w) + i, in(divisor) + i, out(y) + i, n, grid);
    });
    ctx->save_for_backward({w, divisor, grids, d1, d2.value_or(Tensor()), d3.value_or(Tensor()), d4.value_or(Tensor())});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &w = saved[0], &divisor = saved[1], &grids = saved[2], grad = grads[0].contiguous();
    const bool wanted = ctx->needs_input_grad(0);
    Tensor grad_d = at::empty_like(w), grad_w = wanted ? at::empty_like(w) : Tensor();
    Tensor totals = at::empty({2, grids.size(1)}, w.options());
    for_rows(w, grids, [&](int64_t row, int64_t i, int64_t n, Grid grid) {
      const auto found = (wanted ? divide_gradients<true> : divide_gradients<false>)(
          in(grad) + i, in(w) + i, in(divisor) + i, out(grad_d) + i, out(wanted ? grad_w : grad_d) + i, n, grid);
      for (int k = 0; k < 2; ++k) out(totals)[k * grids.size(1) + row] = found[k];
    });
    const auto rows = row_shape(w, grids.size(1) == w.size(0) ? 1 : 2);
    const Tensor sums = totals[0].view(rows);
    const auto small = [](const Tensor& x, const Tensor& like) { return at::sum_to(x, like.sizes()); };
    variable_list found = {grad_w, {}, small(sums + totals[1].view(rows), saved[3]), {}, {}, {}, {}, {}};
    if (saved[4].defined()) found[3] = grad_d;
    if (saved[5].defined()) found[4] = small(sums, saved[5]);
    if (saved[6].defined()) found[5] = small(grad_d.sum({2, 3}, true), saved[6]);  // over a kernel first
    return found;
  }
};

EVERY_CPU void add(In w, In v, Out y, int64_t n, Grid grid) {
  for (int64_t i = 0; i < n; ++i) y[i] = grid.clipped(std::nearbyint(w[i] / grid.step + v[i])) * grid.step;
}

// Writes the gradient of v; returns those of s, of the lower and of the upper bound.
EVERY_CPU std::array<double, 3> add_gradients(In grad, In w, In v, Out grad_v, int64_t n, Grid grid) {
  return sums<3>(n, [&](int64_t i) {
    const float g = grad[i], u = w[i] / grid.step, rounded = std::nearbyint(u + v[i]), code = grid.clipped(rounded);
    const float scaled = g * grid.step, below = rounded < code ? scaled : 0.f, above = rounded > code ? scaled : 0.f;
    const bool outside = __builtin_islessgreater(rounded, code);
    grad_v[i] = outside ? 0.f : scaled;
    return std::array{g * (code - (outside ? 0.f : u)), below, above};
  });
}

struct AddRound : torch::autograd::Function<AddRound> {
  static Tensor forward(
      AutogradContext* ctx, const Tensor& weight, const Tensor& given, const Tensor& step, const Tensor& low,
      const Tensor& high) {
    const Tensor w = weight.contiguous(), v = given.contiguous(), grids = grids_of(w, dims(step), step, low, high);
    Tensor y = at::empty_like(w);
    for_rows(w, grids, [&](int64_t, int64_t i, int64_t n, Grid grid) { add(in(w) + i, in(v) + i, out(y) + i, n, grid); });
    ctx->save_for_backward({w, v, grids, step, low, high});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &w = saved[0], &v = saved[1], &grids = saved[2], grad = grads[0].contiguous();
    Tensor grad_v = at::empty_like(w), totals = at::empty({3, grids.size(1)}, w.options());
    for_rows(w, grids, [&](int64_t row, int64_t i, int64_t n, Grid grid) {
      const auto found = add_gradients(in(grad) + i, in(w) + i, in(v) + i, out(grad_v) + i, n, grid);
      for (int k = 0; k < 3; ++k) out(totals)[k * grids.size(1) + row] = found[k];
    });
    variable_list found = {{}, grad_v, {}, {}, {}};
    const auto rows = row_shape(w, grids.size(1) == w.size(0) ? 1 : 2);
    for (int k = 0; k < 3; ++k) found[2 + k] = at::sum_to(totals[k].view(rows), saved[3 + k].sizes());
    return found;
  }
};

// h(alpha) = clamp(1.2 sigmoid - 0.1, 0, 1) and its slope, 0 at both ends.
INLINE float stretched(float sigmoid) { return clip(sigmoid * STRETCH + LEAST, 0, 1); }
INLINE float slope_of(float sigmoid, float h) {
  const float slope = (sigmoid - sigmoid * sigmoid) * STRETCH;
  return h * (1 - h) > 0 ? slope : 0.f;
}

// s1 clamp(floor + h(alpha)), or its gradient in alpha times another one.
template <bool GRADIENT> EVERY_CPU void soften(In sigmoid, In floor, In grad, Out y, int64_t n, Grid grid) {
  for (int64_t i = 0; i < n; ++i) {
    const float h = stretched(sigmoid[i]), code = h + floor[i], clipped = grid.clipped(code), g = grad[i];
    const float slope = g * (slope_of(sigmoid[i], h) * grid.step);
    y[i] = !GRADIENT ? clipped * grid.step : __builtin_islessgreater(code, clipped) ? 0.f : slope;
  }
}

Tensor softened(const Tensor& sigmoid, const Tensor& floor, const Tensor& grids, const MaybeTensor& grad) {
  Tensor y = at::empty_like(sigmoid);
  for_rows(sigmoid, grids, [&](int64_t, int64_t i, int64_t n, Grid grid) {
    const float* g = grad ? in(*grad) : in(sigmoid);
    (grad ? soften<true> : soften<false>)(in(sigmoid) + i, in(floor) + i, g + i, out(y) + i, n, grid);
  });
  return y;
}

struct SigmoidRound : torch::autograd::Function<SigmoidRound> {
  static Tensor forward(
      AutogradContext* ctx, const Tensor& alpha, const Tensor& floor, const Tensor& step, const Tensor& low,
      const Tensor& high) {
    const Tensor sigmoid = alpha.contiguous().sigmoid(), whole = floor.contiguous();
    const Tensor grids = grids_of(alpha, dims(step), step, low, high);
    ctx->save_for_backward({sigmoid, whole, grids});
    return softened(sigmoid, whole, grids, {});
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {softened(saved[0], saved[1], saved[2], grads[0].contiguous()), {}, {}, {}, {}};
  }
};

EVERY_CPU void centre(In sigmoid, Out y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::fabs(2 * stretched(sigmoid[i]) - 1);
}

// Replaces |c|^(beta - 1), c = 2 h - 1, by the slope of -|c|^beta in alpha; returns the sum of |c|^beta.
EVERY_CPU double penalize(In sigmoid, Out power, int64_t n, float beta) {
  return sums<1>(n, [&](int64_t i) {
    const float h = stretched(sigmoid[i]), centred = 2 * h - 1, p = power[i];
    power[i] = std::copysign(p, centred) * slope_of(sigmoid[i], h) * (-2 * beta);
    return std::array{p * std::fabs(centred)};
  })[0];
}

struct RoundingRegularizer : torch::autograd::Function<RoundingRegularizer> {
  static Tensor forward(AutogradContext* ctx, const Tensor& alpha, double beta) {
    const Tensor sigmoid = alpha.contiguous().sigmoid();
    Tensor slope = at::empty_like(sigmoid), total = at::empty({}, alpha.options());
    const Mask all({}, 1, 0, alpha.numel());
    all.each([&](int64_t, int64_t i, int64_t n, Kept) { centre(in(sigmoid) + i, out(slope) + i, n); });
    slope.pow_(beta - 1);
    std::vector<double> parts(all.chunks);
    all.each([&](int64_t chunk, int64_t i, int64_t n, Kept) {
      parts[chunk] = penalize(in(sigmoid) + i, out(slope) + i, n, beta);
    });
    *out(total) = alpha.numel() - std::accumulate(parts.begin(), parts.end(), 0.0);
    ctx->save_for_backward({slope});
    return total;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {ctx->get_saved_variables()[0] * grads[0], {}};
  }
};

EVERY_CPU void distances(In x, Out y, int64_t n, Grid grid) {
  for (int64_t i = 0; i < n; ++i) {
    const float given = x[i];
    y[i] = std::fabs(grid.clipped(std::nearbyint(given / grid.step)) * grid.step - given);
  }
}

// |x - x̂|; with a grid for each row x is contiguous.
Tensor distance(const Tensor& x, const Tensor& step, const Tensor& low, const Tensor& high) {
  Tensor y = at::empty_like(x);
  if (step.numel() == 1) {
    const Grid grid{*in(step), *in(low), *in(high)};
    Mask({}, 1, 0, x.numel()).each([&](int64_t, int64_t i, int64_t n, Kept) { distances(in(x) + i, out(y) + i, n, grid); });
  } else {
    for_rows(x, grids_of(x, dims(step), step, low, high), [&](int64_t, int64_t i, int64_t n, Grid grid) {
      distances(in(x) + i, out(y) + i, n, grid);
    });
  }
  return y;
}

TORCH_LIBRARY(flexround, m) {
  m.def("step_quantize", [](const Tensor& x, const Tensor& step, double low, double high, const MaybeTensor& kept,
                            int64_t bits, int64_t threshold) {
    return StepQuantize::apply(x, step, low, high, kept, bits, threshold);
  });
  m.def("mix_rows", mix_rows);
  m.def("distance", distance);
  m.def("divide_round", [](const Tensor& weight, const Tensor& start, const Tensor& d1, const MaybeTensor& d2,
                           const MaybeTensor& d3, const MaybeTensor& d4, const Tensor& low, const Tensor& high) {
    return DivideRound::apply(weight, start, d1, d2, d3, d4, low, high);
  });
  m.def("sigmoid_round", [](const Tensor& alpha, const Tensor& floor, const Tensor& step, const Tensor& low,
                            const Tensor& high) { return SigmoidRound::apply(alpha, floor, step, low, high); });
  m.def("rounding_regularizer", [](const Tensor& alpha, double beta) { return RoundingRegularizer::apply(alpha, beta); });
  m.def("add_round", [](const Tensor& weight, const Tensor& v, const Tensor& step, const Tensor& low,
                        const Tensor& high) { return AddRound::apply(weight, v, step, low, high); });
}
