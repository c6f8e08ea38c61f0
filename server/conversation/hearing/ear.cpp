// The ear of one microphone. ear.py, loudness.py, people.py and stranger.py are the reference, and explain what happens
// here; each function has the name of its reference. The results are the same to the last bit: sums run in the same
// order, and pow and log10 are the C library's, as in Python. Python keeps two rare things, which it is called back for:
// the portrait's spectra, and a detector that a test supplies.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "silero.h"

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kRate = 16000, kGateSamples = 160, kFrameSamples = 512;
constexpr int64_t kGateBytes = 2 * kGateSamples;
constexpr int kLevels = 100, kVoiceFrames = 24, kMostWindow = 64, kLoudFrames = 5;
constexpr double kLeastGain = 6.0, kCrest = 23.0, kStrong = 20.0, kFade = 15.0;
constexpr int64_t kReach = kRate / 2;
constexpr int kPortraitLeast = 2, kPortraitMemory = 20;

int64_t rounded(double value) { return static_cast<int64_t>(std::nearbyint(value)); }  // halves to even, as in Python

// The last `kMost` values, as a deque with a maxlen.
template <int kMost>
class Last {
 public:
  void append(double value) {
    if (size_ == kMost) {
      values_[first_] = value;
      first_ = first_ + 1 == kMost ? 0 : first_ + 1;
    } else {
      values_[(first_ + size_++) % kMost] = value;
    }
  }
  void clear() { size_ = first_ = 0; }
  int size() const { return size_; }
  double operator[](int place) const { return values_[(first_ + place) % kMost]; }
  double most(double otherwise) const {
    double found = size_ ? (*this)[0] : otherwise;
    for (int place = 0; place < size_; ++place) found = std::max(found, values_[(first_ + place) % kMost]);
    return found;
  }

 private:
  double values_[kMost];
  int first_ = 0, size_ = 0;
};

struct RoomPolicy {
  double assumed, near, soft, same, fall, bed_margin, bed_keep, hides, hides_open, bed_least, bed_range, stands_out;
  double gain_most, gain_to, vowels, noise_to;
};

struct PeoplePolicy {
  double soft_s, look_s, look_db, glance_s, glance_db, stranger_least_s, stranger_most_s, stranger_wait_s;
};

struct EarPolicy {
  double margin, keep_margin, guard, faintest, depth, open_frames, open_window, close_s;
  double voiced_on, voiced_slack, confirm_frames, sustain_frames, sustain_db, certain_frames, doubt_s, foreign_s;
  double distrust_s, warm_frames, late_frames, bed_hang_s, keep_s;
};

struct Policies {
  EarPolicy ear;
  RoomPolicy room;
  PeoplePolicy people;
  double faint_db;  // a voice below this level is too soft to be understood
};

// ---- loudness.py

class Extremes {
 public:
  double quietest = kAtFirst, loudest = -kInf;

  bool feed(double level) {
    smooth_ = smooth_ + (smooth_ != 0.0 ? 0.3 : 1.0) * (level - smooth_);
    if (smooth_ < lowest_) {
      lowest_ = smooth_;
      if (smooth_ < quietest) quietest = smooth_;
    }
    if (level > highest_) {
      highest_ = level;
      if (level > loudest) loudest = level;
    }
    if (++frames_ < kBlockFrames) return false;
    low_[blocks_ % kBlocks] = lowest_;
    high_[blocks_ % kBlocks] = highest_;
    const int known = static_cast<int>(std::min<int64_t>(++blocks_, kBlocks));
    frames_ = 0;
    lowest_ = smooth_;
    highest_ = -kInf;
    quietest = *std::min_element(low_, low_ + known);
    if (known < kBlocks) quietest = std::min(kAtFirst, quietest);
    loudest = *std::max_element(high_, high_ + known);
    return true;
  }

 private:
  static constexpr int kBlockFrames = 25, kBlocks = 10;
  static constexpr double kAtFirst = -30.0;

  double low_[kBlocks], high_[kBlocks], smooth_ = 0.0, lowest_ = 0.0, highest_ = -kInf;
  int frames_ = 0;
  int64_t blocks_ = 0;
};

template <int kFrames>
class LoudLevel {
 public:
  explicit LoudLevel(int least) : least_(least) {}

  double level = -kInf;

  bool known() const { return level > -kInf; }
  int size() const { return static_cast<int>(std::min<int64_t>(count_, kFrames)); }
  double frame(int place) const { return ring_[place]; }

  bool feed(double value) {
    ring_[count_++ % kFrames] = value;
    if (count_ % kEvery || count_ < least_) return false;
    double last[kFrames];
    const int found = size(), place = static_cast<int>(0.8 * found);
    std::copy(ring_, ring_ + found, last);
    std::nth_element(last, last + place, last + found);
    level = last[place];
    return true;
  }

  static constexpr int kEvery = 25;

 private:
  double ring_[kFrames];
  int64_t count_ = 0;
  int least_;
};

class Room {
 public:
  explicit Room(const RoomPolicy& policy) : policy_(policy) {}

  double gain = 0.0;
  bool knows_person = false, has_bed = false;
  double bar = -kInf, open_bar = -kInf, near = -kInf, soft = -kInf, faintest = -kInf;

  double noise() const { return range_.quietest; }
  double person() const { return knows_person ? person_.level : policy_.assumed; }
  double loudest() const { return range_.loudest; }
  bool stands_out(double level) const { return bed_.known() && level >= bed_.level + policy_.stands_out; }
  double turn_gain() const { return gain_of(range_.loudest + policy_.vowels); }

  void feed(double level) {
    const bool louder = level > range_.loudest;
    if (range_.feed(level)) {
      settle();
    } else if (louder && gain != 0.0) {
      gain = gain_of(level);
    }
  }

  void learn_person(double level) {
    const double before = person_.level;
    if (!person_.feed(level)) return;
    const double step = policy_.fall * LoudLevel<1>::kEvery / 100;
    person_.level = std::max(person_.level, before - step);
    knows_person = true;
    settle();
  }

  void learn_bed(double level) {
    if (bed_.feed(level)) settle();
  }

  void admit(double level) {
    second_ = level;
    bed_ = LoudLevel<800>(200);
    settle();
  }

 private:
  double gain_of(double loudest) const {
    const double reference = knows_person ? person_.level : loudest;
    return std::max(0.0, std::min({policy_.gain_most, policy_.gain_to - reference, policy_.noise_to - noise()}));
  }

  void settle() {
    const double person = person_.level, bed = bed_.level;
    gain = gain_of(range_.loudest);
    if (!knows_person) return;
    has_bed = bed > std::max(noise() + policy_.bed_least, person - policy_.bed_range);
    bar = has_bed ? std::min(bed + policy_.bed_margin, person - policy_.hides) : -kInf;
    open_bar = has_bed ? std::min(bed + policy_.bed_keep, person - policy_.hides_open) : -kInf;
    near = person - policy_.near;
    soft = std::min(near, second_ - policy_.same);
    const double above_bed = has_bed ? std::min(bed + policy_.bed_margin, person - policy_.hides_open) : -kInf;
    faintest = std::max(std::min(person - policy_.soft, second_ - policy_.same), above_bed);
  }

  const RoomPolicy& policy_;
  Extremes range_;
  LoudLevel<500> person_{50};
  LoudLevel<800> bed_{200};
  double second_ = kInf;
};

// ---- stranger.py

enum class Stance { kSpeaks, kWaits, kNothing };

struct Stranger {
  int64_t begin, last;
  double level;
  int64_t least, most, wait;

  Stance feed(double loudness, double margin, int64_t at) {
    if (loudness >= std::max(margin, level - kFade)) last = at;
    if (last - begin > most) return Stance::kNothing;
    if (at - last < wait) return Stance::kSpeaks;
    return last - begin >= least ? Stance::kWaits : Stance::kNothing;
  }
};

// ---- what Python sees and does

enum Hearing : int64_t { kQuiet, kSuspected, kVoiced, kPaused };
enum Kind : int64_t { kOnset, kConfirmed, kDropped, kSilent, kVoicedAgain };
enum Question : int32_t { kLearn, kDistance, kDetect };

struct Event {
  int64_t kind, at, heard, faint;
};

// Called back with the last second of sound (kLearn: add it to the portrait; kDistance: return how far it is from the
// portrait) or with 512 samples as float32 (kDetect: return the probability of speech; no samples: a voice begins).
typedef double (*Ask)(void* owner, int32_t question, const void* data, int64_t bytes);

// WebRTC's detector: Python makes it and keeps it alive.
typedef int (*Process)(void* detector, int rate, const int16_t* samples, size_t count);

struct Gate {
  void* detector;
  Process process;
};

// What the properties of an ear are made of; the beginning of `Ear`, which Python reads in place.
struct View {
  int64_t heard = 0;        // samples that have come
  int64_t framed = 0;       // samples in the gate's frames so far
  int64_t kept_from = 0;    // the sample at which the kept sound begins
  int64_t hearing = kQuiet;
  int64_t since = 0;        // sample at which the present voice or pause began
  int64_t before = 0;       // samples of voice since the onset, without the present stretch
  int64_t last_strong = 0;  // sample at which the last strong frame ended
  int64_t strong = 0;       // samples in strong frames since the onset
  int64_t stirs = 0;        // of the last frames, how many passed the gate
  double amplifies = 0.0;   // dB, of the sound that goes to the recogniser
  const uint8_t* kept = nullptr;
  int64_t kept_bytes = 0;
  const Event* events = nullptr;
};

class Ear : public View {
 public:
  Ear(const Policies& policies, const Gate& gate, const SileroNetwork* network, Ask ask)
      : policies_(policies), gate_(gate), network_(network), ask_(ask), room_(policies_.room) {
    window_ = static_cast<int>(policies_.ear.open_window);
  }
  Ear(const Ear&) = delete;

  int64_t feed(void* owner, const uint8_t* pcm, int64_t bytes, bool guarded, double threshold) {
    owner_ = owner;
    guarded_ = guarded;
    threshold_ = threshold;
    events_.clear();
    forget();
    sound_.insert(sound_.end(), pcm, pcm + bytes);
    while (2 * (framed - kept_from) + kGateBytes <= static_cast<int64_t>(sound_.size())) {
      int16_t frame[kGateSamples];
      std::memcpy(frame, sound_.data() + 2 * (framed - kept_from), kGateBytes);
      const double loudness = level_of(frame);
      framed += kGateSamples;
      pass_gate(frame, loudness);
      if (is_open_ || detecting_ || hearing != kQuiet) listen();
      if (has_stranger_) follow(loudness);
    }
    heard = kept_from + static_cast<int64_t>(sound_.size()) / 2;
    show();
    return static_cast<int64_t>(events_.size());
  }

  void rest() {
    hearing = kQuiet;
    is_open_ = false;
    recent_size_ = 0;
    run_ = 0;
    amplifies = 0.0;
    has_stranger_ = false;
    show();
  }

  double excess_db() const {
    const int size = levels_.size(), first = std::max(0, size - kLoudFrames);
    if (!size || !room_.knows_person) return 0.0;
    double sum = 0.0;
    for (int place = first; place < size; ++place) sum += levels_[place];
    return sum / (size - first) - room_.person();
  }

  double voice_level() const { return voice_.known() ? voice_.level : people_level(); }

 private:
  void show() {
    kept = sound_.data();
    kept_bytes = static_cast<int64_t>(sound_.size());
    events = events_.data();
    stirs = passed();
  }

  static double level_of(const int16_t* frame) {
    int64_t sum = 0;
    for (int place = 0; place < kGateSamples; ++place) sum += static_cast<int32_t>(frame[place]) * frame[place];
    return 10 * std::log10(static_cast<double>(sum) / (kGateSamples * (32768.0 * 32768.0)) + 1e-12);
  }

  static void amplify(int16_t* frame, double gain, double level) {
    const auto times = static_cast<int32_t>(rounded(std::pow(10.0, gain / 20)));
    const bool safe = level + gain < -kCrest;
    for (int place = 0; place < kGateSamples; ++place) {
      const int32_t louder = frame[place] * times;
      frame[place] = static_cast<int16_t>(safe ? louder : std::clamp(louder, -32768, 32767));
    }
  }

  void forget() {
    const double keep_s = policies_.ear.keep_s + (has_stranger_ ? policies_.people.stranger_most_s : 0.0);
    const int64_t excess = static_cast<int64_t>(sound_.size()) / 2 - rounded(keep_s * kRate);
    if (excess > kRate / 2) {
      sound_.erase(sound_.begin(), sound_.begin() + 2 * excess);
      kept_from += excess;
    }
  }

  double ask_portrait(Question question) {
    const int64_t first = 2 * (framed - kRate - kept_from), begin = std::max<int64_t>(0, first);
    return ask_(owner_, question, sound_.data() + begin, first + 2 * kRate - begin);
  }

  // ---- the gate

  int passed() const {
    int sum = 0;
    for (int place = 0; place < recent_size_; ++place) sum += recent_[place];
    return sum;
  }

  void note_passed(bool passes) {
    if (recent_size_ == window_) {
      std::copy(recent_ + 1, recent_ + window_, recent_);
      recent_[window_ - 1] = passes;
    } else {
      recent_[recent_size_++] = passes;
    }
  }

  void pass_gate(int16_t* frame, double level) {
    const EarPolicy& policy = policies_.ear;
    double bar;
    if (is_open_) {
      bar = std::max({room_.noise() + policy.keep_margin, room_.open_bar, room_.loudest() - policy.depth});
    } else {
      bar = std::max(room_.noise() + policy.margin, room_.bar);
      if (guarded_) bar = std::max(bar, room_.person() - policy.guard);
    }
    const bool loud = level >= std::max(bar, policy.faintest);
    if (loud && room_.gain >= kLeastGain) amplify(frame, room_.gain, level);
    const bool passes = gate_.process(gate_.detector, kRate, frame, kGateSamples) == 1 && loud;
    room_.feed(level);
    note_passed(passes);
    if (passes) {
      last_up_ = framed;
      levels_.append(level);
      if (level >= levels_.most(0.0) - kStrong) {
        last_strong = framed;
        strong += kGateSamples;
      }
    }
    if (hearing == kVoiced) {
      hear_voice(level, framed, passes && !guarded_);
    } else {
      people_levels_.append(level);
      room_.learn_bed(level);
    }
    if (is_open_) {
      is_open_ = framed - last_up_ < policy.close_s * kRate;
    } else if (passed() >= policy.open_frames) {
      is_open_ = true;
      levels_.clear();
      begin_people();
      const bool* first = std::find(recent_, recent_ + recent_size_, true);
      opened_ = framed - kGateSamples * (recent_size_ - (first - recent_));
    }
  }

  // ---- the verdict

  void listen() {
    const EarPolicy& policy = policies_.ear;
    if (hearing == kQuiet && is_open_) {
      if (framed >= distrusted_until_) {
        begin_at(opened_);
      } else {
        distrusted_until_ = framed + rounded(policy.distrust_s * kRate);
      }
    }
    detect();
    if (hearing != kSuspected) return;
    const int64_t lasted = framed - begin_;
    const bool doubtful = (!is_open_ || lasted >= policy.doubt_s * kRate) && !run_;
    if (doubtful && hesitates_) {
      confirm();
    } else if (doubtful || (foreign_ && lasted >= policy.foreign_s * kRate)) {
      hearing = kQuiet;
      amplifies = 0.0;
      distrusted_until_ = framed + rounded(policy.distrust_s * kRate);
      const bool mine = voicelike_ >= policy.confirm_frames && !foreign_ && !guarded_;
      events_.push_back({kDropped, begin_, framed, mine && people_level() < policies_.faint_db});
    }
  }

  void detect() {
    if (!is_open_ && (hearing == kQuiet || hearing == kPaused)) {
      detecting_ = false;
      run_ = 0;
      return;
    }
    if (!detecting_) {
      detecting_ = true;
      state_ = SileroState{};
      if (!network_) ask_(owner_, kDetect, nullptr, 0);
      gain_ = std::pow(10.0, room_.gain / 20);
      const int64_t warm = opened_ - static_cast<int64_t>(policies_.ear.warm_frames) * kFrameSamples;
      detected_ = std::max({detected_, warm, kept_from});
    }
    while (framed - detected_ >= kFrameSamples) {
      skips_ = !skips_ && hearing == kVoiced && passed() == recent_size_;
      if (!skips_) {
        const double found = probability(sound_.data() + 2 * (detected_ - kept_from));
        detected_ += kFrameSamples;
        judge(found, detected_ - kFrameSamples);
      } else {
        detected_ += kFrameSamples;
      }
    }
  }

  double probability(const uint8_t* from) {
    int16_t samples[kFrameSamples];
    float frame[kFrameSamples];
    std::memcpy(samples, from, sizeof samples);
    const auto scale = static_cast<float>(gain_ / 32768.0);
    for (int place = 0; place < kFrameSamples; ++place) frame[place] = static_cast<float>(samples[place]) * scale;
    return network_ ? vox_silero(network_, &state_, frame) : ask_(owner_, kDetect, frame, sizeof frame);
  }

  void judge(double found, int64_t start) {
    const EarPolicy& policy = policies_.ear;
    bool voiced = found >= threshold_ - (run_ ? policy.voiced_slack : 0.0);
    if (hearing == kVoiced && room_.has_bed) voiced = voiced && framed - last_up_ < policy.bed_hang_s * kRate;
    run_ = voiced ? run_ + 1 : 0;
    voicelike_ += voiced;
    if (hearing == kQuiet || hearing == kSuspected) {
      if (run_ < policy.confirm_frames || !sustained()) return;
      const bool quiet = hearing == kQuiet;
      const int64_t began = quiet ? start - (run_ - 1) * kFrameSamples : begin_;
      if (!admits(began, opened_, framed)) return;
      if (quiet) begin_at(foreign_ ? std::max(began, framed - kReach) : began);
      confirm();
    } else if (hearing == kVoiced && !voiced) {
      const int64_t late = start - static_cast<int64_t>(policy.late_frames) * kFrameSamples;
      pause_at(std::max({since, std::min(start, last_up_), late}));
    } else if (hearing == kPaused && voiced) {
      hearing = kVoiced;
      since = start;
      confirm_people();
      events_.push_back({kVoicedAgain, start, framed, 0});
    }
  }

  bool sustained() const {
    const double bar = levels_.most(0.0) - policies_.ear.sustain_db;
    int loud = 0;
    for (int place = 0; place < levels_.size(); ++place) loud += levels_[place] >= bar;
    return loud >= policies_.ear.sustain_frames || run_ >= policies_.ear.certain_frames;
  }

  void follow(double level) {
    if (guarded_ || hearing == kVoiced || hearing == kPaused) {
      has_stranger_ = false;
      return;
    }
    const Stance stance = stranger_.feed(level, room_.noise() + policies_.ear.margin, framed);
    if (stance != Stance::kSpeaks) has_stranger_ = false;
    if (stance != Stance::kWaits) return;
    room_.admit(stranger_.level);
    if (hearing == kQuiet) begin_at(stranger_.begin);
    confirm();
    pause_at(std::max(since, stranger_.last));
  }

  void confirm() {
    hearing = kVoiced;
    confirm_people();
    events_.push_back({kConfirmed, begin_, framed, 0});
  }

  void pause_at(int64_t end) {
    hearing = kPaused;
    before += end - since;
    since = end;
    events_.push_back({kSilent, end, framed, 0});
  }

  void begin_at(int64_t sample) {
    hearing = kSuspected;
    begin_ = since = sample;
    before = voicelike_ = 0;
    amplifies = room_.turn_gain();
    strong = framed - sample;
    events_.push_back({kOnset, sample, framed, 0});
  }

  // ---- people.py

  double people_level() const {
    double power = 0.0;
    for (int place = 0; place < people_levels_.size(); ++place) power += std::pow(10.0, people_levels_[place] / 10);
    return 10 * std::log10(power / std::max(1, people_levels_.size()) + 1e-12);
  }

  void begin_people() {
    foreign_ = hesitates_ = false;
    people_levels_.clear();
    loudest_ = -kInf;
  }

  void confirm_people() {
    foreign_ = hesitates_ = false;
    is_soft_ = false;
    voice_ = LoudLevel<100>(50);
  }

  void hear_voice(double level, int64_t at, bool learns) {
    people_levels_.append(level);
    voice_.feed(level);
    const double loudness = voice_.known() ? voice_.level : level;
    if (loudness >= room_.soft) {
      is_soft_ = false;
      if (learns && loudness >= room_.near) {
        room_.learn_person(level);
        draw();
      }
    } else if (!is_soft_) {
      is_soft_ = true;
      soft_from_ = at;
    } else if (at - soft_from_ >= policies_.people.soft_s * kRate) {
      room_.learn_bed(level);
    } else if (at - soft_from_ == kRate) {
      look_at_soft_voice(at);
    }
  }

  bool admits(int64_t began, int64_t opened, int64_t at) {
    const double level = people_level();
    loudest_ = std::max(loudest_, level);
    if ((room_.has_bed ? level : loudest_) >= room_.faintest) {
      if (loudest_ >= room_.soft || drawn_ < kPortraitLeast || is_like(at - opened)) return true;
      if (hesitates_) return false;
    }
    if (!foreign_ && !has_stranger_ && room_.stands_out(loudest_) && !guarded_) {
      const PeoplePolicy& policy = policies_.people;
      has_stranger_ = true;
      stranger_ = {began, at, loudest_, rounded(policy.stranger_least_s * kRate),
                   rounded(policy.stranger_most_s * kRate), rounded(policy.stranger_wait_s * kRate)};
    }
    foreign_ = true;
    return false;
  }

  bool is_like(int64_t lasted) {
    const PeoplePolicy& policy = policies_.people;
    hesitates_ = lasted < policy.look_s * kRate;
    if (lasted < policy.glance_s * kRate) return false;
    return ask_portrait(kDistance) < (hesitates_ ? policy.glance_db : policy.look_db);
  }

  void draw() {
    if (++unseen_ < kRate / kGateSamples) return;
    unseen_ = 0;
    ask_portrait(kLearn);
    drawn_ = std::min(drawn_ + 1, kPortraitMemory);
  }

  void look_at_soft_voice(int64_t at) {
    if (drawn_ < kPortraitLeast) return;
    if (ask_portrait(kDistance) < policies_.people.look_db) {
      soft_from_ = at;
      return;
    }
    soft_from_ = at - rounded(policies_.people.soft_s * kRate);
    for (int place = 0; place < voice_.size(); ++place) room_.learn_bed(voice_.frame(place));
  }

  const Policies policies_;
  const Gate gate_;
  const SileroNetwork* network_;
  const Ask ask_;
  Room room_;
  void* owner_ = nullptr;
  bool guarded_ = false;
  double threshold_ = 0.5;
  int window_;
  bool recent_[kMostWindow];  // of the last frames: passed the gate?
  int recent_size_ = 0;
  bool is_open_ = false;
  int64_t opened_ = 0, last_up_ = 0, begin_ = 0, distrusted_until_ = 0, voicelike_ = 0, run_ = 0;
  Last<kLevels> levels_;
  bool detecting_ = false, skips_ = false;
  int64_t detected_ = 0;
  double gain_ = 1.0;
  SileroState state_;
  std::vector<uint8_t> sound_;  // the last sound, from sample kept_from on
  std::vector<Event> events_;
  // people.py
  bool foreign_ = false, hesitates_ = false, has_stranger_ = false, is_soft_ = false;
  Stranger stranger_;
  Last<kVoiceFrames> people_levels_;
  double loudest_ = -kInf;
  LoudLevel<100> voice_{50};
  int64_t soft_from_ = 0;
  int unseen_ = 0, drawn_ = 0;
};

}  // namespace

extern "C" {

int64_t vox_ear_policies() { return sizeof(Policies) / sizeof(double); }

int64_t vox_ear_view() { return sizeof(View); }

void* vox_ear_new(const Policies* policies, const Gate* gate, const SileroNetwork* network, Ask ask) {
  return static_cast<View*>(new Ear(*policies, *gate, network, ask));
}

void vox_ear_free(void* ear) { delete static_cast<Ear*>(static_cast<View*>(ear)); }

int64_t vox_ear_feed(void* ear, void* owner, const uint8_t* pcm, int64_t bytes, int32_t guarded, double threshold) {
  return static_cast<Ear*>(static_cast<View*>(ear))->feed(owner, pcm, bytes, guarded, threshold);
}

void vox_ear_rest(void* ear) { static_cast<Ear*>(static_cast<View*>(ear))->rest(); }

double vox_ear_excess_db(void* ear) { return static_cast<Ear*>(static_cast<View*>(ear))->excess_db(); }

double vox_ear_voice_level(void* ear) { return static_cast<Ear*>(static_cast<View*>(ear))->voice_level(); }
}
