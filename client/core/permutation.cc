#include "permutation.h"

#include "mix.h"

namespace cachecd {
Permutation::Permutation(uint64_t n, uint64_t key) : n_(n), half_bits_(0) {
  while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
  rounds_ = half_bits_ <= kSmallHalfBits ? kRoundsOfSmall : kRounds;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  // n is part of the key, so that one seed shuffles sets of different sizes differently.
  uint64_t state = Mix(key + kGolden) ^ n;
  for (uint64_t& round_key : round_keys_) round_key = Mix(state += kGolden);
}

uint64_t Permutation::operator[](uint64_t position) const {
  uint64_t x = position;
  do {
    uint64_t left = x >> half_bits_;
    uint64_t right = x & half_mask_;
    for (int round = 0; round < rounds_; ++round) {
      const uint64_t next = left ^ (Mix(right ^ round_keys_[round]) & half_mask_);
      left = right;
      right = next;
    }
    x = (left << half_bits_) | right;
  } while (x >= n_);
  return x;
}

}  // namespace cachecd
