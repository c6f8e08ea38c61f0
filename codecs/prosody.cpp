// How a voice ends: the probability that a sentence is finished. prosody.py is the reference, and says what is done.
//
// Four frames are transformed at once. How alike a frame is to itself some samples later comes from a second transform,
// of its power, where the reference multiplies by a matrix.

#include "prosody.h"

#include <algorithm>
#include <vector>

#include "native_math.h"

namespace {

constexpr int kFrames = 150, kHop = 160, kWindow = 512, kSize = 2 * kWindow, kBins = kWindow + 1;
constexpr int kClip = (kFrames - 1) * kHop + kWindow;
constexpr int kBands = 20, kFeatures = kBands + 4, kFirstLag = 40, kLags = 206, kLoudFrames = 40;
constexpr float kFloorDb = -50.0f;

const RealTransform<kSize> transform;

struct Frame {
  float bands[kBands];
  float total, voicing, semitones, level;
  bool voiced;
};

// The mean of the largest values, and a little.
float loud_mean(std::vector<float> values) {
  std::nth_element(values.begin(), values.end() - kLoudFrames, values.end());
  double sum = 0.0;
  for (auto value = values.end() - kLoudFrames; value != values.end(); ++value) sum += *value;
  return static_cast<float>(sum / kLoudFrames) + 1e-9f;
}

float decibels(float ratio) { return std::max(kFloorDb, 10 * std::log10(ratio + 1e-9f)); }

// Find the bands, the voicing and the pitch of four frames; `clip` begins with the first of them.
void look(const ProsodyTables& tables, const float* clip, Frame* frames, int count) {
  alignas(64) Quad sound[kSize] = {};
  for (int place = 0; place < kWindow; ++place) {
    for (int frame = 0; frame < count; ++frame) {
      sound[place][frame] = clip[frame * kHop + place] * tables.window[place];
    }
  }
  alignas(64) Quad power[kSize];
  transform.run(sound, [&](int bin, Quad real, Quad imaginary) {
    power[bin] = real * real + imaginary * imaginary;
    if (bin) power[kSize - bin] = power[bin];  // a real and even sequence
  });
  Quad bands[kBands] = {}, total = {}, energy = {};
  for (int bin = 0; bin < kBins; bin += 2) {
    const float* shares = tables.bank + bin / 2 * kBands;
    for (int band = 0; band < kBands; ++band) bands[band] += power[bin] * shares[band];
  }
  for (int bin = 8; bin < 232; ++bin) total += power[bin];
  for (int bin = 0; bin < kSize; ++bin) energy += power[bin];
  alignas(64) Quad alike[kWindow + 1];
  transform.run(power, [&](int lag, Quad real, Quad) { alike[lag] = real; });
  for (int frame = 0; frame < count; ++frame) {
    Frame& found = frames[frame];
    for (int band = 0; band < kBands; ++band) found.bands[band] = bands[band][frame];
    found.total = total[frame];
    float likeness[kLags], best = -1e30f;
    for (int lag = 0; lag < kLags; ++lag) {
      likeness[lag] = alike[kFirstLag + lag][frame] * tables.correction[lag] / (energy[frame] + 1e-6f);
      best = std::max(best, likeness[lag]);
    }
    found.voicing = std::min(1.0f, std::max(0.0f, best));
    int near = 0;
    while (near < kLags && likeness[near] < 0.92f * found.voicing) ++near;
    near = near == kLags ? 0 : near;
    found.semitones = 12 * std::log2(16000.0f / static_cast<float>(near + kFirstLag));
  }
}

void find_features(const ProsodyTables& tables, const float* clip, float* features) {
  std::vector<Frame> frames(kFrames);
  for (int first = 0; first < kFrames; first += 4) {
    look(tables, clip + first * kHop, &frames[first], std::min(4, kFrames - first));
  }
  std::vector<float> totals, loudest, pitches;
  for (const Frame& frame : frames) {
    totals.push_back(frame.total);
    loudest.push_back(*std::max_element(frame.bands, frame.bands + kBands));
  }
  const float loud = loud_mean(totals), loud_band = loud_mean(loudest);
  for (Frame& frame : frames) {
    frame.level = decibels(frame.total / loud);
    frame.voiced = frame.voicing > 0.6f && frame.level > -25.0f;
    if (frame.voiced) pitches.push_back(frame.semitones);
  }
  float middle = 0.0f;
  if (!pitches.empty()) {
    std::sort(pitches.begin(), pitches.end());
    const size_t half = pitches.size() / 2;
    middle = pitches.size() % 2 ? pitches[half] : (pitches[half - 1] + pitches[half]) / 2;
  }
  for (const Frame& frame : frames) {
    for (int band = 0; band < kBands; ++band) *features++ = 1 + decibels(frame.bands[band] / loud_band) / 50;
    *features++ = 1 + frame.level / 50;
    *features++ = frame.voicing;
    *features++ = frame.voiced ? std::clamp(frame.semitones - middle, -12.0f, 12.0f) / 6 : 0.0f;
    *features++ = frame.voiced ? 1.0f : 0.0f;
  }
}

// A convolution over time of width 5 with stride 2 and zeros at both ends, then ReLU.
template <int kInputs, int kOutputs>
void convolve(const std::vector<float>& layer, const float* weights, const float* bias, std::vector<float>& out) {
  const int length = static_cast<int>(layer.size()) / kInputs, steps = (length + 1) / 2;
  std::vector<float> padded((length + 4) * kInputs + 1, 0.0f);
  std::copy(layer.begin(), layer.end(), padded.begin() + 2 * kInputs);
  out.resize(steps * kOutputs);
  for (int step = 0; step < steps; ++step) {
    multiply<1, 4, 5 * kInputs, kOutputs>(&padded[2 * step * kInputs], 0, weights, bias, &out[step * kOutputs]);
  }
}

}  // namespace

extern "C" {

void vox_prosody_features(const ProsodyTables* tables, const float* clip, int64_t samples, float* features) {
  std::vector<float> padded(kClip, 0.0f);
  const int64_t kept = std::min<int64_t>(samples, kClip);
  std::copy(clip + samples - kept, clip + samples, padded.end() - kept);
  find_features(*tables, padded.data(), features);
}

double vox_prosody(const ProsodyTables* tables, const float* clip, int64_t samples) {
  std::vector<float> layer(kFrames * kFeatures), next;
  vox_prosody_features(tables, clip, samples, layer.data());
  convolve<kFeatures, 32>(layer, tables->weights[0], tables->biases[0], next);
  convolve<32, 48>(next, tables->weights[1], tables->biases[1], layer);
  convolve<48, 48>(layer, tables->weights[2], tables->biases[2], next);
  float hidden[48];
  multiply<1, 4, 19 * 48, 48>(next.data(), 0, tables->weights[3], tables->biases[3], hidden);
  double value = tables->verdict_bias;
  for (int place = 0; place < 48; ++place) value += static_cast<double>(hidden[place]) * tables->verdict[place];
  return 1 / (1 + std::exp(-value));
}
}
