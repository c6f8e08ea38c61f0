// The weights of Silero's network as the native code reads them, and the state of one stream. codecs/silero.py packs them.

#pragma once

#include <cstdint>

struct SileroNetwork {
  const float* window;      // [256]
  const float* weights[4];  // the convolutions: [outputs / 16][inputs][16]
  const float* biases[4];
  const float* gates;  // [512 / 16][256][16]
  const float* gates_bias;
  const float* verdict;
  double verdict_bias;
};

struct SileroState {
  float cell[128];
  float seen[256];  // the frame's features, then the last output
};

float vox_silero_step(const SileroNetwork& network, SileroState& state, const float* frame);

extern "C" double vox_silero(const SileroNetwork* network, SileroState* state, const float* frame);
