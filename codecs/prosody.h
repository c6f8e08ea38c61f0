// The tables and weights of the network that judges how a voice ends. codecs/prosody.py makes them.

#pragma once

#include <cstdint>

struct ProsodyTables {
  const float* window;      // [512]
  const float* bank;        // [257][20]
  const float* correction;  // [206]: a window makes long lags look less alike
  const float* weights[4];  // [outputs / 16][inputs][16]
  const float* biases[4];
  const float* verdict;  // [48]
  double verdict_bias;
};

extern "C" double vox_prosody(const ProsodyTables* tables, const float* clip, int64_t samples);

extern "C" void vox_prosody_features(const ProsodyTables* tables, const float* clip, int64_t samples, float* features);
