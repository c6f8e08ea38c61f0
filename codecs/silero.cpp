// Silero's voice activity network for 16 kHz: one frame of 512 samples of one stream. silero.py is the reference.
//
// A frame costs 400,000 multiplications and reads 0.9 MB of weights. The weights are packed in columns of 16 outputs, so
// that both are done 16 values at a time; the compiler splits these vectors into the registers of the machine.

#include "silero.h"

#include "native_math.h"

namespace {

constexpr int kFrame = 512, kWindow = 256, kHop = 128, kPad = 64, kBins = 129, kHidden = 128;
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

// e to the power x, for x in [-87, 87]: 2 ** n times a polynomial, within 1e-7.
inline Vec exponential(Vec x) {
  const Vec scaled = x * 1.44269504088896341f;
  const Vec shifted = scaled + 12582912.0f;  // 1.5 * 2 ** 23: the sum has no fraction
  const Vec whole = shifted - 12582912.0f;
  const Vec r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
  Vec two;
  std::memcpy(&two, &power, sizeof two);
  return p * two;
}

inline Vec hyperbolic_tangent(Vec x) {
  const Vec bounded = x > 9.0f ? splat(9.0f) : (x < -9.0f ? splat(-9.0f) : x);
  const Vec large = 1.0f - 2.0f / (exponential(2.0f * bounded) + 1.0f);
  const Vec squared = x * x;  // near 0 the difference above would lose digits
  const Vec small = x + x * squared * (-1.0f / 3 + squared * (2.0f / 15 + squared * (-17.0f / 315 + squared * (62.0f / 2835))));
  return squared < 0.04f ? small : large;
}

const RealTransform<kWindow> transform;

inline int mirrored(int place) {  // of a frame with `kPad` mirrored samples at both ends
  const int at = place - kPad;
  return at < 0 ? -at : (at >= kFrame ? 2 * (kFrame - 1) - at : at);
}

void features(const SileroNetwork& network, const float* frame, float* found) {
  alignas(64) Quad windows[kWindow];
  for (int place = 0; place < kWindow; ++place) {
    for (int window = 0; window < 4; ++window) {
      windows[place][window] = frame[mirrored(kHop * window + place)] * network.window[place];
    }
  }
  alignas(64) float padded[6 * kBins] = {};  // silence before and after
  transform.run(windows, [&](int bin, Quad real, Quad imaginary) {
    const Quad power = real * real + imaginary * imaginary;
    for (int window = 0; window < 4; ++window) padded[(window + 1) * kBins + bin] = std::sqrt(power[window]);
  });
  alignas(64) float wider[5 * 128] = {};
  multiply<4, 1, 3 * kBins, 128>(padded, kBins, network.weights[0], network.biases[0], wider + 128);
  alignas(64) float halved[2 * 64];
  multiply<2, 2, 3 * 128, 64>(wider, 2 * 128, network.weights[1], network.biases[1], halved);
  alignas(64) float third[64];
  multiply<1, 4, 2 * 64, 64>(halved, 0, network.weights[2], network.biases[2], third);
  multiply<1, 4, 64, 128>(third, 0, network.weights[3], network.biases[3], found);
}

}  // namespace

float vox_silero_step(const SileroNetwork& network, SileroState& state, const float* frame) {
  alignas(64) float gates[4 * kHidden];
  features(network, frame, state.seen);
  multiply<1, 4, 2 * kHidden, 4 * kHidden, false>(state.seen, 0, network.gates, network.gates_bias, gates);
  for (int place = 0; place < 4 * kHidden; place += kLanes) {
    store(gates + place, hyperbolic_tangent(load(gates + place)));
  }
  Vec verdict = splat(0.0f);
  for (int place = 0; place < kHidden; place += kLanes) {
    const Vec enters = load(gates + place) * 0.5f + 0.5f, stays = load(gates + kHidden + place) * 0.5f + 0.5f;
    const Vec leaves = load(gates + 3 * kHidden + place) * 0.5f + 0.5f;
    const Vec cell = load(state.cell + place) * stays + enters * load(gates + 2 * kHidden + place);
    store(state.cell + place, cell);
    const Vec last = leaves * hyperbolic_tangent(cell);
    store(state.seen + kHidden + place, last);
    verdict += (last > 0.0f ? last : splat(0.0f)) * load(network.verdict + place);
  }
  float sum = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) sum += verdict[lane];
  return sum;
}

extern "C" {

// Return the probability of speech in 512 samples, and advance the state.
double vox_silero(const SileroNetwork* network, SileroState* state, const float* frame) {
  return 1 / (1 + std::exp(-static_cast<double>(vox_silero_step(*network, *state, frame)) - network->verdict_bias));
}
}
