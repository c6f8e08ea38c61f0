// What the small networks of this folder share: products with packed matrices, and transforms of four frames at once.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__clang__)
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")  // a fused multiplication and addition is twice as fast
#endif

namespace {

constexpr int kBlock = 16;  // outputs whose weights lie side by side
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kParts = kBlock / kLanes;

typedef float Vec __attribute__((vector_size(4 * kLanes)));  // one register
typedef float Quad __attribute__((vector_size(16)));         // one value of each of four frames

inline Vec load(const float* from) {
  Vec value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, const Vec& value) { std::memcpy(to, &value, sizeof value); }

inline Vec splat(float value) { return value - Vec{}; }

// Multiply `kRows` rows of `inputs` values by a packed matrix [outputs / 16][inputs][16], and add the bias. Row r begins
// at x + r * stride. `kChains` sums run beside each other, since an addition takes several cycles.
template <int kRows, int kChains, int kInputs, int kOutputs, bool kRectify = true>
void multiply(const float* x, int stride, const float* weights, const float* bias, float* y) {
  for (int block = 0; block < kOutputs; block += kBlock, weights += kInputs * kBlock) {
    Vec sums[kChains][kRows][kParts];
    for (auto& chain : sums) {
      for (auto& row : chain) {
        for (auto& part : row) part = splat(0.0f);
      }
    }
    int place = 0;
    for (; place + kChains <= kInputs; place += kChains) {
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) {
        const float* column = weights + (place + chain) * kBlock;
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          const float factor = x[row * stride + place + chain];
#pragma GCC unroll 4
          for (int part = 0; part < kParts; ++part) sums[chain][row][part] += load(column + part * kLanes) * factor;
        }
      }
    }
    for (place = kInputs / kChains * kChains; place < kInputs; ++place) {
      for (int row = 0; row < kRows; ++row) {
        for (int part = 0; part < kParts; ++part) {
          sums[0][row][part] += load(weights + place * kBlock + part * kLanes) * x[row * stride + place];
        }
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) {
        const int at = block + part * kLanes;
        Vec sum = sums[0][row][part] + load(bias + at);
        for (int chain = 1; chain < kChains; ++chain) sum += sums[chain][row][part];
        if (kRectify) sum = sum > 0.0f ? sum : splat(0.0f);
        store(y + row * kOutputs + at, sum);
      }
    }
  }
}

// The transform of `kSize` real samples, of four frames at once.
template <int kSize>
class RealTransform {
 public:
  static constexpr int kHalf = kSize / 2;

  RealTransform() {
    int bits = 0;
    while (1 << bits < kHalf) ++bits;
    for (int place = 0; place < kHalf; ++place) {
      int reversed = 0;
      for (int bit = 0; bit < bits; ++bit) reversed |= (place >> bit & 1) << (bits - 1 - bit);
      reversed_[place] = reversed;
      const double angle = -2 * M_PI * place / kSize;
      cosine_[place] = static_cast<float>(std::cos(angle));
      sine_[place] = static_cast<float>(std::sin(angle));
    }
  }

  // `frames` holds sample n of the four frames at n. `put` is called with every bin and its real and imaginary part.
  template <typename Put>
  void run(const Quad* frames, Put put) const {
    Quad real[kHalf], imaginary[kHalf];
    for (int place = 0; place < kHalf; ++place) {  // even samples are the real part, odd ones the imaginary part
      real[place] = frames[2 * reversed_[place]];
      imaginary[place] = frames[2 * reversed_[place] + 1];
    }
    for (int width = 1; width < kHalf; width *= 2) {
      const int step = kSize / (2 * width);
      for (int turn = 0; turn < width; ++turn) {
        const float c = cosine_[turn * step], s = sine_[turn * step];
        for (int at = turn; at < kHalf; at += 2 * width) {
          const Quad r = real[at + width] * c - imaginary[at + width] * s;
          const Quad i = real[at + width] * s + imaginary[at + width] * c;
          real[at + width] = real[at] - r;
          imaginary[at + width] = imaginary[at] - i;
          real[at] += r;
          imaginary[at] += i;
        }
      }
    }
    put(0, real[0] + imaginary[0], Quad{});
    put(kHalf, real[0] - imaginary[0], Quad{});
    for (int bin = 1; bin < kHalf; ++bin) {  // part the transforms of the even and the odd samples
      const int mirror = kHalf - bin;
      const Quad even_r = (real[bin] + real[mirror]) * 0.5f, even_i = (imaginary[bin] - imaginary[mirror]) * 0.5f;
      const Quad odd_r = (imaginary[bin] + imaginary[mirror]) * 0.5f, odd_i = (real[mirror] - real[bin]) * 0.5f;
      const float c = cosine_[bin], s = sine_[bin];
      put(bin, even_r + odd_r * c - odd_i * s, even_i + odd_r * s + odd_i * c);
    }
  }

 private:
  int reversed_[kHalf];
  float cosine_[kHalf], sine_[kHalf];
};

}  // namespace
