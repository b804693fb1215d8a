// The forward convolution of 8-bit numbers as matrix products of float panels by BLAS, cut as those of
// conv_gemm.cpp are. int8: products of so few numbers at a time that each sum of them is exact in
// float are added in int32 (modulo 2^32), so that all sums are exact.
#include "cpu/conv_weights.h"
#include "cpu/gemm_finish.h"
#include "cpu/prims/blas.h"

namespace dlkern {
namespace cpu {
namespace {

// Sums of so many products of int8 are integers of at most 2^24.
constexpr int64_t kExactRows = 1024;

// The sums of a panel: [channel, position], or the transpose where positions are major.
template <class Sum>
class Sums {
 public:
  Sums(Form form, int64_t size) : form_(form), sums_(size), product_(kExact ? size : 0) {}

  void start(int64_t channels, int64_t columns) {
    channels_ = channels;
    columns_ = columns;
    std::fill_n(sums_.begin(), channels * columns, Sum(0));
  }
  int64_t ld() const { return form_ == Form::kChannelMajor ? columns_ : channels_; }
  const Sum* data() const { return sums_.data(); }

  // Adds the products of r rows of patches: weights [channels, r] and patches as the form has them.
  void add(int64_t r, Matrix<const float> w, Matrix<const float> patches) {
    if constexpr (!kExact) {
      multiply(r, w, patches, 1, sums_.data());
    } else {
      const int64_t step = form_ == Form::kChannelMajor ? patches.ld : 1;
      for (int64_t i = 0; i < r; i += kExactRows) {
        multiply(std::min(kExactRows, r - i), {w.data + i, w.ld},
                 {patches.data + i * step, patches.ld}, 0, product_.data());
        for (int64_t j = 0; j < channels_ * columns_; ++j) {
          const auto sum = static_cast<uint32_t>(sums_[j]);
          sums_[j] =
              static_cast<int32_t>(sum + static_cast<uint32_t>(static_cast<int32_t>(product_[j])));
        }
      }
    }
  }

 private:
  static constexpr bool kExact = std::is_integral_v<Sum>;

  void multiply(int64_t r, Matrix<const float> w, Matrix<const float> patches, float keep,
                float* to) const {
    if (form_ == Form::kChannelMajor) {
      gemm(false, false, channels_, columns_, r, 1.0f, w.data, w.ld, patches.data, patches.ld, keep,
           to, columns_);
    } else {
      gemm(false, true, columns_, channels_, r, 1.0f, patches.data, patches.ld, w.data, w.ld, keep,
           to, channels_);
    }
  }

  Form form_;
  int64_t channels_ = 0, columns_ = 0;
  std::vector<Sum> sums_;
  std::vector<float> product_;
};

// Finishes rows of a panel's sums, which are those of the channels from `first` on.
template <class Sum>
void store(const ScaledConv& p, Form form, const Panel& panel, int64_t first, int64_t channels,
           const Sums<Sum>& sums, float* row, Finish<float>& finish) {
  const ConvImageStrides& s = p.y_strides;
  int64_t at[Gemm::kTensors] = {};
  const auto one = [&](const Sum* from, int64_t i, int64_t j0, int64_t n) {
    if constexpr (std::is_integral_v<Sum>) {
      finish.finish(from, row, 0, at, i, j0, n);
    } else {
      std::copy_n(from, n, row);
      finish.scale(row, 0, at, i, j0, n);
      finish.store(row, at, i, j0, n, false);
    }
  };
  for (const Segment& seg : panel.segments) {
    const int64_t begin =
        seg.n * s.n + seg.o[0] * s.spatial[0] + seg.o[1] * s.spatial[1] + seg.begin * s.spatial[2];
    at[3] = begin;
    if (form == Form::kChannelMajor) {
      for (int64_t c = 0; c < channels; ++c) {
        one(sums.data() + c * sums.ld() + seg.column, first + c, 0, seg.length);
      }
    } else {
      for (int64_t i = 0; i < seg.length; ++i, at[3] += s.spatial[2]) {
        one(sums.data() + (seg.column + i) * sums.ld(), 0, first, channels);
      }
    }
  }
}

template <class X, class W>
void forward(const ScaledConv& p) {
  using Sum = std::conditional_t<std::is_same_v<X, int8_t>, int32_t, float>;
  const ConvGeometry& g = p.geometry;
  const Form form = form_of(p);
  const Weights<W> weights(p, form, g.c);
  const Patches<X> x(g, form, p.x.as<X>(), p.x_strides);
  const ForwardCuts cuts(g, x.outer(), x.inner());
  Gemm output = scaled_conv_output(p, form == Form::kPositionMajor);
  if (form == Form::kChannelMajor) output.y.col = p.y_strides.spatial[2];
  if (output.amax) *output.amax = 0;
  parallel_for(cuts.tasks(g), cuts.grain(), [&](int64_t begin, int64_t end) {
    std::vector<float> patches(cuts.rows * cuts.columns), row(std::max(cuts.part, cuts.columns));
    Sums<Sum> sums(form, cuts.part * cuts.columns);
    Finish<float> finish(output, row.size());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task % g.groups, first = task / g.groups % cuts.parts * cuts.part;
      const Panel panel = cuts.panels.panel(g, task / g.groups / cuts.parts);
      const int64_t channels = std::min(cuts.part, g.k - first);
      if (channels <= 0) continue;
      sums.start(channels, panel.columns());
      const Matrix<const float> w = weights.block(group, 0);
      for (int64_t unit = 0; unit < cuts.outer; unit += cuts.units) {
        const int64_t last = std::min(unit + cuts.units, cuts.outer);
        sums.add((last - unit) * cuts.inner, {w.data + first * w.ld + unit * cuts.inner, w.ld},
                 x.read(panel, group, unit, last, patches.data()));
      }
      store(p, form, panel, group * g.k + first, channels, sums, row.data(), finish);
    }
    finish.finish_amax();
  });
}

void run(const ScaledConv& p, const Launch&) {
  if (p.x.dtype == DType::kInt8) return forward<int8_t, int8_t>(p);
  const auto with_weights = [&]<class X>() {
    p.w.dtype == DType::kFloat8E4M3 ? forward<X, Float8E4M3>(p) : forward<X, Float8E5M2>(p);
  };
  if (p.x.dtype == DType::kFloat8E4M3) {
    with_weights.template operator()<Float8E4M3>();
  } else {
    with_weights.template operator()<Float8E5M2>();
  }
}

constexpr Impl<ScaledConv> kImpls[] = {{"cpu_gemm", supports_all, nullptr, run}};

}  // namespace
}  // namespace cpu

template <>
ImplList<ScaledConv> cpu_impls<ScaledConv>() {
  return cpu::kImpls;
}

}  // namespace dlkern
